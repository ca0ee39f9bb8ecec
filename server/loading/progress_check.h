// SPDX-License-Identifier: Apache-2.0
// Whether the pool as a whole gets on, for the log, the watchdog and status. In: how long workers and readers
// are at their work, GPUs at their copies, and other threads at their operations. Out: what hangs.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/loading/worker_pool.h"
#include "server/memory/device_arenas.h"
#include "server/memory/ongoing_operation.h"

namespace pinfeed {

// What has been under way for longer than the limit.
struct HungThread {
  std::string thread;  // its name
  std::chrono::nanoseconds age{0};
  std::string gpu = {};  // a copy thread's, which has ended no copy for so long; empty: of a pool, and at
  uint64_t feed = 0;     // this feed's
  uint64_t sample = 0;   // sample,
  std::string sample_name = {};        // which a person finds by this; empty: not known
  std::string operation = {};          // of neither of the two: what it is at
  PoolKind pool = PoolKind::kWorkers;  // which one, of a thread of a pool
};

// Purpose: tells a daemon that works, or has nothing to do, from one that is stuck. A worker, reader or GPU
// that hangs is only told of while others get on: ending the daemon would cost them what they are at.
// Borrows: the pools, which outlive it. Threads: one; Hung from any. Errors: what hangs is logged when it is
// first seen, when nothing else gets on either, and when it moves again. Operations are told of in the same
// way, but never count as stuck: feeds go on without them. Invariant: looked at seldom, it finds out late,
// never wrongly.
class ProgressCheck {
 public:
  struct Parts {
    const WorkerPool& workers;
    std::function<std::vector<GpuSnapshot>()> gpus = nullptr;  // null: there are none
    // What a person looks for to find the sample of that feed; empty: not known. Null: never is. Called from
    // whichever thread asks.
    std::function<std::string(uint64_t feed, uint64_t sample)> sample_name = nullptr;
    bool watched = false;  // whoever looks feeds a watchdog by it
    // What other threads are at right now; null: there are none. Called from whichever thread asks.
    std::function<std::vector<OngoingOperation>()> operations = nullptr;
    const WorkerPool* readers = nullptr;                // null: there are none
    std::chrono::milliseconds operation_limit{10'000};  // for those that do not wait for storage
  };
  // `limit` 0: nothing is ever stuck.
  ProgressCheck(Parts parts, std::chrono::milliseconds limit) : parts_(std::move(parts)), limit_(limit) {}

  // Empty while work gets done anywhere, or there is none; else what holds it up.
  std::string Stuck();
  // Now, workers, readers, GPUs, then operations; of each pool the longest first. `gpus` is what Parts::gpus
  // gives.
  std::vector<HungThread> Hung(const std::vector<GpuSnapshot>& gpus) const;
  void SetLimit(std::chrono::milliseconds limit) { limit_ = limit; }
  // How often to look, to tell soon after the limit; max() when there is none.
  std::chrono::milliseconds interval() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kWell, kPartly, kStuck };
  void Enter(State state, const std::string& hung);
  // Of a pool, the longest first.
  void AddHung(const WorkerPool& pool, std::chrono::milliseconds limit, std::vector<HungThread>& hung) const;
  // Without operations.
  std::vector<HungThread> HungAtBatches(const std::vector<GpuSnapshot>& gpus) const;
  // From when on it hangs; max(): never.
  Clock::duration LimitOf(const OngoingOperation& operation) const;
  void LookAtChores(Clock::time_point now);

  const Parts parts_;
  std::atomic<std::chrono::milliseconds> limit_;
  State state_ = State::kWell;
  std::vector<OngoingOperation> told_;         // of those that hang
  uint64_t done_ = 0;                          // portions of work and copied bytes, by the last look
  Clock::time_point moved_at_ = Clock::now();  // the last look that found more of them than the one before
};

}  // namespace pinfeed
