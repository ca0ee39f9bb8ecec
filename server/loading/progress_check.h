// SPDX-License-Identifier: Apache-2.0
// Detects hanging threads and GPUs, for the log, the watchdog and status. In: the age of each pool thread's
// work, of each GPU's copies and of other threads' operations. Out: what hangs.
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
  std::string gpu = {};  // copy threads only: the GPU that has completed no copy for so long
  // Pool threads only: the sample, how a person finds it (empty: not known), and the pool.
  uint64_t feed = 0;
  uint64_t sample = 0;
  std::string sample_name = {};
  std::string operation = {};  // other threads only: the operation
  PoolKind pool = PoolKind::kWorkers;
};

// Purpose: tells a daemon that works, or has nothing to do, from one that is stuck. A hanging worker, reader
// or GPU is only reported while others make progress, since ending the daemon would lose their work. Borrows:
// the pools, which outlive it. Threads: one; Hung from any. Errors: a hang is logged when it is first seen,
// when nothing else makes progress either, and when it ends. Operations are reported in the same way, but
// never count as stuck: feeds do not wait for them. Invariant: rare calls find a hang late, never wrongly.
class ProgressCheck {
 public:
  struct Parts {
    const WorkerPool& workers;
    std::function<std::vector<GpuSnapshot>()> gpus = nullptr;  // null: there are none
    // What a person looks for to find the sample of that feed; empty: not known. Null: never is. Called from
    // whichever thread asks.
    std::function<std::string(uint64_t feed, uint64_t sample)> sample_name = nullptr;
    bool watched = false;  // the caller feeds a watchdog by the result
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
  enum class State { kHealthy, kPartlyHung, kStuck };
  void Enter(State state, const std::string& hung);
  // Of a pool, the longest first.
  void AddHung(const WorkerPool& pool, std::chrono::milliseconds limit, std::vector<HungThread>& hung) const;
  // Without operations.
  std::vector<HungThread> HungAtBatches(const std::vector<GpuSnapshot>& gpus) const;
  // From when on it hangs; max(): never.
  Clock::duration LimitOf(const OngoingOperation& operation) const;
  void LogSlowOperations(Clock::time_point now);

  const Parts parts_;
  std::atomic<std::chrono::milliseconds> limit_;
  State state_ = State::kHealthy;
  std::vector<OngoingOperation> logged_operations_;  // of those that hang
  uint64_t done_ = 0;                                // portions of work and copied bytes, by the last look
  Clock::time_point progressed_at_ =
      Clock::now();  // the last look that found more of them than the one before
};

}  // namespace pinfeed
