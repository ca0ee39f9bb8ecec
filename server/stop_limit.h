// SPDX-License-Identifier: Apache-2.0
// How long the daemon's end may take. In: a limit. Out: an end of the process, whatever does not answer.
#pragma once

#include <chrono>
#include <thread>

#include "common/sync.h"

namespace pinfeed {

// Purpose: ends the process with status 1 when this still exists at the limit: a copy that never completes,
// or a call into a driver that never returns, would keep the daemon from its end, and its clients from the
// next one. The kernel takes back all that it had, as from one that was killed. Owns a thread. Threads: one
// makes and destroys it. Errors: none.
class StopLimit {
 public:
  explicit StopLimit(std::chrono::seconds limit);
  ~StopLimit() PF_EXCLUDES(mutex_);
  StopLimit(const StopLimit&) = delete;
  StopLimit& operator=(const StopLimit&) = delete;

 private:
  void Run() PF_EXCLUDES(mutex_);

  const std::chrono::seconds limit_;
  Mutex mutex_;
  CondVar changed_;
  bool over_ PF_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace pinfeed
