// SPDX-License-Identifier: Apache-2.0
// What the watchdog is fed for. In: how long workers are at their work, and GPUs at their copies. Out:
// whether the pool as a whole gets on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/memory/device_arenas.h"
#include "server/pipeline/worker_pool.h"

namespace pinfeed {

// Purpose: tells a daemon that works, or has nothing to do, from one that is stuck. One worker or GPU that
// hangs is only told of while others get on: ending the daemon would cost them what they are at. Borrows: the
// workers, which outlive it. Threads: one. Errors: what hangs is logged when it is first seen, when nothing
// else gets on either, and when it moves again. Invariant: looked at seldom, it finds out late, never
// wrongly.
class ProgressCheck {
 public:
  // `limit` 0: nothing is ever stuck.
  ProgressCheck(const WorkerPool& workers, std::function<std::vector<GpuSnapshot>()> gpus,
                std::chrono::milliseconds limit)
      : workers_(workers), gpus_(std::move(gpus)), limit_(limit) {}

  // Empty while work gets done anywhere, or there is none; else what holds it up.
  std::string Stuck();
  void SetLimit(std::chrono::milliseconds limit) { limit_ = limit; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kWell, kPartly, kStuck };
  // What has been under way for longer than the limit; empty: nothing.
  std::string FindHung(const std::vector<GpuSnapshot>& gpus) const;
  void Enter(State state, const std::string& hung);

  const WorkerPool& workers_;
  const std::function<std::vector<GpuSnapshot>()> gpus_;  // empty: there are none
  std::chrono::milliseconds limit_;
  State state_ = State::kWell;
  uint64_t done_ = 0;                          // portions of work and copied bytes, by the last look
  Clock::time_point moved_at_ = Clock::now();  // the last look that found more of them than the one before
};

}  // namespace pinfeed
