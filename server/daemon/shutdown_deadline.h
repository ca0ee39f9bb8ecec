// SPDX-License-Identifier: Apache-2.0
// Bounds the daemon's shutdown. In: a time limit. Out: the exit of the process, even if a GPU or a disk does
// not answer, so that the next daemon can start.
#pragma once

#include <chrono>
#include <thread>

#include "common/base/sync.h"

namespace pinfeed {

// Purpose: exits the process with status 1 if the object still exists at the limit. Otherwise, a copy that
// never completes or a driver call that never returns would block shutdown, and with it the clients'
// reconnection. The kernel reclaims the resources, as after a kill. It cannot do so while a thread is in an
// uninterruptible wait. Therefore connections are shut down, listeners closed and the lock released first.
// Owns: a thread. Borrows: the lock. Threads: one creates and destroys it. Errors: none.
// Invariant: at the limit, nothing is called that a hung thread could block.
class ShutdownDeadline {
 public:
  // `lock` is the descriptor of a flock(2), or -1 if none is held.
  ShutdownDeadline(std::chrono::seconds limit, int lock);
  ~ShutdownDeadline() PF_EXCLUDES(mutex_);

 private:
  void Run() PF_EXCLUDES(mutex_);

  const std::chrono::seconds limit_;
  const int lock_;
  Mutex mutex_;
  CondVar changed_;
  bool stopped_ PF_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace pinfeed
