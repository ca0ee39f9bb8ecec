// SPDX-License-Identifier: Apache-2.0
// Threads that help a caller with work of which each takes what is left.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/sync.h"

namespace pinfeed {

// Purpose: runs a function on several threads at once. Owns the threads, which start when they are first
// wanted. Threads: any; callers share the helpers. Precondition of destruction: no Run is under way.
class HelperThreads {
 public:
  explicit HelperThreads(uint32_t count) : count_(count) {}
  ~HelperThreads();

  uint32_t count() const { return count_; }
  // Runs `body` on this thread, and on up to `helpers` others as they become free. Returns when no thread is
  // in it, and starts it on none later: so `body` must do all that is left before it returns. Threads that
  // cannot be started do not help.
  void Run(uint32_t helpers, const std::function<void()>& body) PF_EXCLUDES(mutex_);

 private:
  struct Job {
    const std::function<void()>& body;
    uint32_t wanted;                   // threads that may still join; by the mutex
    std::atomic<uint32_t> running{0};  // changed under the mutex
  };
  // Returns how many of so many there are.
  uint32_t Start(uint32_t helpers) PF_EXCLUDES(mutex_);
  void WakeTwo(uint32_t wanted);
  void Help() PF_EXCLUDES(mutex_);

  const uint32_t count_;
  Mutex mutex_;
  CondVar wanted_;
  CondVar finished_;
  std::deque<Job*> jobs_ PF_GUARDED_BY(mutex_);  // that want threads
  bool ending_ PF_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
