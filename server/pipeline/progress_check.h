// SPDX-License-Identifier: Apache-2.0
// What the watchdog is fed for. In: how long workers are at their work, and GPUs at their copies. Out:
// whether all of them still get on.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/memory/device_arenas.h"
#include "server/pipeline/worker_pool.h"

namespace pinfeed {

// Purpose: tells a daemon that works, or has nothing to do, from one that is stuck. Borrows: the
// workers, which outlive it. Threads: one. Errors: what is stuck is logged when it is first
// seen, and when it moves again.
class ProgressCheck {
 public:
  // `limit` 0: nothing is ever stuck.
  ProgressCheck(const WorkerPool& workers, std::function<std::vector<GpuSnapshot>()> gpus,
                std::chrono::milliseconds limit)
      : workers_(workers), gpus_(std::move(gpus)), limit_(limit) {}

  // Empty when all get on; else what does not.
  std::string Stuck();

 private:
  std::string Find() const;

  const WorkerPool& workers_;
  const std::function<std::vector<GpuSnapshot>()> gpus_;  // empty: there are none
  const std::chrono::milliseconds limit_;
  bool was_stuck_ = false;
};

}  // namespace pinfeed
