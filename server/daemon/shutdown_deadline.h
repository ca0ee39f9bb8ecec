// SPDX-License-Identifier: Apache-2.0
// How long the daemon's end may take. In: a limit. Out: an end of the process, whatever does not answer, by
// which the next daemon can start.
#pragma once

#include <chrono>
#include <thread>

#include "common/base/sync.h"

namespace pinfeed {

// Purpose: ends the process with status 1 when this still exists at the limit: a copy that never completes,
// or a call into a driver that never returns, would keep the daemon from its end, and its clients from the
// next one. The kernel takes back all that it had, as from one that was killed, but not while a thread waits
// where not even a kill ends it: so peers are hung up on, listeners closed and the lock given back before.
// Owns a thread. Borrows: the lock. Threads: one makes and destroys it. Errors: none. Invariant: at the limit
// nothing is called that a thread which hangs could hold up.
class ShutdownDeadline {
 public:
  // `lock` is the descriptor of a flock(2); -1: none is held.
  ShutdownDeadline(std::chrono::seconds limit, int lock);
  ~ShutdownDeadline() PF_EXCLUDES(mutex_);
  ShutdownDeadline(const ShutdownDeadline&) = delete;
  ShutdownDeadline& operator=(const ShutdownDeadline&) = delete;

 private:
  void Run() PF_EXCLUDES(mutex_);

  const std::chrono::seconds limit_;
  const int lock_;
  Mutex mutex_;
  CondVar changed_;
  bool over_ PF_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace pinfeed
