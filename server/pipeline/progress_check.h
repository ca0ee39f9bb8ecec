// SPDX-License-Identifier: Apache-2.0
// Whether the pool as a whole gets on, for the log and the watchdog. In: how long workers are at their work,
// GPUs at their copies, and threads at giving memory back. Out: what hangs.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/memory/clean_up.h"
#include "server/memory/device_arenas.h"
#include "server/pipeline/worker_pool.h"

namespace pinfeed {

// Purpose: tells a daemon that works, or has nothing to do, from one that is stuck. One worker or GPU that
// hangs is only told of while others get on: ending the daemon would cost them what they are at. Borrows: the
// workers, which outlive it. Threads: one. Errors: what hangs is logged when it is first seen, when nothing
// else gets on either, and when it moves again. Memory that is given back is told of in the same way, but
// never counts as stuck: feeds go on without it. Invariant: looked at seldom, it finds out late, never
// wrongly.
class ProgressCheck {
 public:
  struct Parts {
    const WorkerPool& workers;
    std::function<std::vector<GpuSnapshot>()> gpus = nullptr;  // null: there are none
    // What a person looks for to find the sample of that feed; empty: not known. Null: never is.
    std::function<std::string(uint64_t feed, uint64_t sample)> sample_name = nullptr;
    bool watched = false;  // whoever looks feeds a watchdog by it
    // What gives memory back right now; null: nothing ever does.
    std::function<std::vector<CleanUp>()> clean_ups = nullptr;
    std::chrono::milliseconds clean_up_limit{10'000};  // a driver does it in some milliseconds
  };
  // `limit` 0: nothing is ever stuck.
  ProgressCheck(Parts parts, std::chrono::milliseconds limit) : parts_(std::move(parts)), limit_(limit) {}

  // Empty while work gets done anywhere, or there is none; else what holds it up.
  std::string Stuck();
  void SetLimit(std::chrono::milliseconds limit) { limit_ = limit; }
  // How often to look, to tell soon after the limit; max() when there is none.
  std::chrono::milliseconds interval() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kWell, kPartly, kStuck };
  // What has been under way for longer than the limit; empty: nothing.
  std::string FindHung(const std::vector<GpuSnapshot>& gpus) const;
  void Enter(State state, const std::string& hung);
  void LookAtCleanUps(Clock::time_point now);

  const Parts parts_;
  std::chrono::milliseconds limit_;
  State state_ = State::kWell;
  std::vector<CleanUp> told_;                  // of those that hang
  uint64_t done_ = 0;                          // portions of work and copied bytes, by the last look
  Clock::time_point moved_at_ = Clock::now();  // the last look that found more of them than the one before
};

}  // namespace pinfeed
