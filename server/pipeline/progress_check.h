// SPDX-License-Identifier: Apache-2.0
// What the watchdog is fed for. In: how long workers are at their work, and GPUs at their copies. Out:
// whether all of them still get on.
#pragma once

#include <chrono>
#include <string>

#include "server/memory/device_arenas.h"
#include "server/pipeline/worker_pool.h"

namespace pinfeed {

// Purpose: tells a daemon that works, or has nothing to do, from one that is stuck. Borrows: workers and
// devices (null: none), which outlive it. Threads: one. Errors: what is stuck is logged when it is first
// seen, and when it moves again.
class ProgressCheck {
 public:
  // `limit` 0: nothing is ever stuck.
  ProgressCheck(const WorkerPool& workers, const DeviceArenas* devices, std::chrono::milliseconds limit)
      : workers_(workers), devices_(devices), limit_(limit) {}

  // Empty when all get on; else what does not.
  std::string Stuck();

 private:
  std::string Find() const;

  const WorkerPool& workers_;
  const DeviceArenas* const devices_;
  const std::chrono::milliseconds limit_;
  bool was_stuck_ = false;
};

}  // namespace pinfeed
