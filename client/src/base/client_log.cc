// SPDX-License-Identifier: Apache-2.0
#include "client/src/base/client_log.h"

#include <atomic>
#include <cstdio>
#include <vector>

#include "client/src/base/fork_guard.h"
#include "common/base/sync.h"

namespace pinfeed {
namespace {

void LogToStderr(pf_log_level level, const char* message, void* /*user*/) {
  if (level >= PF_LOG_WARNING) std::fprintf(stderr, "pinfeed: %s\n", message);
}

struct Target {
  pf_log_function function = LogToStderr;
  void* user = nullptr;

  void Call(pf_log_level level, const std::string& message) const {
    if (function != nullptr) function(level, message.c_str(), user);
  }
};
struct Message {
  pf_log_level level;
  std::string text;
  ForkGuard fork_guard{};
};
// A program that never calls the library again leaves no more than these behind.
constexpr size_t kMaxWaiting = 1000;

Mutex g_mutex;
Target g_target PF_GUARDED_BY(g_mutex);
// Never destroyed: threads of the library run until the process ends.
std::vector<Message>& g_waiting PF_GUARDED_BY(g_mutex) = *new std::vector<Message>();
std::atomic<bool> g_any_waiting{false};
thread_local bool t_of_library = false;
const HeldAcrossForks kLogHeld(g_mutex);

Target CurrentTarget() {
  const MutexLock lock(g_mutex);
  return g_target;
}

}  // namespace

void SetLogFunction(pf_log_function function, void* user) {
  const MutexLock lock(g_mutex);
  g_target = {function, user};
}

void ClientLog(pf_log_level level, const std::string& message) {
  if (!t_of_library) return CurrentTarget().Call(level, message);
  const MutexLock lock(g_mutex);
  if (g_waiting.size() == kMaxWaiting) return;
  g_waiting.push_back({level, message});
  g_any_waiting.store(true, std::memory_order_relaxed);
}

void PassOnLog() {
  if (!g_any_waiting.load(std::memory_order_relaxed)) return;
  std::vector<Message> messages;
  Target target;
  {
    const MutexLock lock(g_mutex);
    messages.swap(g_waiting);
    target = g_target;
    g_any_waiting.store(false, std::memory_order_relaxed);
  }
  for (const Message& message : messages) {
    if (message.fork_guard.InCreatorProcess()) target.Call(message.level, message.text);
  }
}

LibraryThread::LibraryThread() {
  t_of_library = true;
}

LibraryThread::~LibraryThread() {
  t_of_library = false;
}

}  // namespace pinfeed
