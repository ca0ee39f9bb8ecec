// SPDX-License-Identifier: Apache-2.0
#include "client/src/fork_guard.h"

#include <pthread.h>

#include "common/status.h"

namespace pinfeed {
namespace {

std::atomic<uint64_t> g_forks{0};

void CountFork() {
  g_forks.fetch_add(1, std::memory_order_relaxed);
}

bool Register() {
  // Fails only without memory for a few bytes. Cheaper than getpid(2) on every call, and right for every way
  // to fork that glibc has.
  PF_CHECK(pthread_atfork(nullptr, nullptr, CountFork) == 0, "pthread_atfork has no memory");
  return true;
}

}  // namespace

uint64_t ForkGeneration() {
  static const bool registered = Register();
  (void)registered;
  return g_forks.load(std::memory_order_relaxed);
}

}  // namespace pinfeed
