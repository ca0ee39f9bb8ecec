// SPDX-License-Identifier: Apache-2.0
#include "client/src/base/fork_guard.h"

#include <array>
#include <ctime>

namespace pinfeed {
namespace {

using std::chrono::steady_clock;

std::atomic<uint64_t> g_forks{0};

// Calls take it shared, forks exclusive. A waiting fork has priority, or threads that call in turn could
// starve it. Not a Mutex of common/base/sync.h, because fork handlers lock and unlock it.
pthread_rwlock_t g_calls = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
thread_local bool t_fork_has_lock = false;  // set between a fork's handlers, which all run on its thread
// Whether this process was forked during a call, or descends from such a process.
std::atomic<bool> g_forked_amid_a_call{false};

// The locks of HeldAcrossForks. Each is held briefly, and no other is taken under it.
constexpr size_t kMaxHeld = 4;
std::array<Mutex*, kMaxHeld> g_held{};
size_t g_held_count = 0;

void LockHeld() PF_THREAD_ANNOTATION(no_thread_safety_analysis) {
  for (size_t i = 0; i < g_held_count; ++i) g_held[i]->Lock();
}

void UnlockHeld() PF_THREAD_ANNOTATION(no_thread_safety_analysis) {
  for (size_t i = 0; i < g_held_count; ++i) g_held[i]->Unlock();
}

timespec AtTime(steady_clock::time_point time) {  // libstdc++'s steady clock is CLOCK_MONOTONIC
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  return {static_cast<time_t>(seconds.count()),
          static_cast<long>(std::chrono::nanoseconds(since - seconds).count())};
}

void BeforeFork() {
  const timespec until = AtTime(steady_clock::now() + NoForkScope::kMaxForkWait);
  t_fork_has_lock = ::pthread_rwlock_clockwrlock(&g_calls, CLOCK_MONOTONIC, &until) == 0;
  LockHeld();
}

void AfterForkInParent() {
  UnlockHeld();
  if (t_fork_has_lock) ::pthread_rwlock_unlock(&g_calls);
  t_fork_has_lock = false;
}

void AfterForkInChild() {
  UnlockHeld();
  g_forks.fetch_add(1, std::memory_order_relaxed);
  if (!t_fork_has_lock) g_forked_amid_a_call.store(true, std::memory_order_relaxed);
  t_fork_has_lock = false;
  // In the child, the threads that held or awaited the lock do not exist.
  static const pthread_rwlock_t kFresh = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
  g_calls = kFresh;
}

// Runs at load time, because a first use could race with a fork. Fails only when memory for a few bytes is
// lacking. It is cheaper than getpid(2) on every call, and covers every kind of fork that glibc has.
__attribute__((constructor)) void Register() {
  PF_CHECK(::pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild) == 0,
           "pthread_atfork has no memory");
}

}  // namespace

uint64_t ForkGeneration() {
  return g_forks.load(std::memory_order_relaxed);
}

HeldAcrossForks::HeldAcrossForks(Mutex& mutex) {
  PF_CHECK(g_held_count < kMaxHeld, "more locks are held across forks than there is room for");
  g_held[g_held_count++] = &mutex;
}

Result<NoForkScope> NoForkScope::Enter(steady_clock::time_point deadline) {
  const timespec until = AtTime(deadline);
  if (::pthread_rwlock_clockrdlock(&g_calls, CLOCK_MONOTONIC, &until) != 0) {
    return Status(Code::kDeadlineExceeded,
                  "the time for this call ran out while another thread of this process was forking");
  }
  NoForkScope scope(&g_calls);
  if (!g_forked_amid_a_call.load(std::memory_order_relaxed)) return scope;
  return FailedPrecondition(
      "this process was forked while another thread of its parent waited for pinfeedd's answer, or for the "
      "GPU's driver: neither can be used in it; start the process with spawn (with Python's multiprocessing: "
      "get_context(\"spawn\")), or fork when no feed is being opened");
}

}  // namespace pinfeed
