// SPDX-License-Identifier: Apache-2.0
// Detects hanging threads and GPUs, for the log, the watchdog and status. In: the age of each pool thread's
// chunk, of each GPU's copies and of other threads' operations. Out: the hanging ones.
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

// A thread whose current work has taken longer than its limit.
struct HungThread {
  std::string thread;               // its name
  std::chrono::nanoseconds age{0};  // of that work
  std::string gpu = {};             // copy threads only: the UUID of the GPU
  // Threads of a pool only: the sample that the thread loads.
  uint64_t feed = 0;
  uint64_t sample = 0;                 // its index in the feed's dataset
  std::string sample_name = {};        // where it is stored (Dataset::Describe); empty: not known
  std::string operation = {};          // threads of no pool and no GPU only: OngoingOperation::what
  PoolKind pool = PoolKind::kWorkers;  // threads of a pool only
};

// Purpose: detects whether the daemon is stuck, which means that a worker, reader or GPU hangs and none of
// the others makes progress either. While others make progress, a hang is only reported, since ending the
// daemon would lose their work. Operations of other threads are reported too, but never make the daemon
// stuck, since feeds do not wait for them. Borrows: the pools, which outlive it. Threads: Stuck from one
// thread; the rest from any. Logs each change between healthy, partly hung and stuck, and each operation
// that begins to hang or goes on. Invariant: if Stuck is called rarely, hangs are detected late, but never
// wrongly.
class ProgressCheck {
 public:
  struct Parts {
    const WorkerPool& workers;
    std::function<std::vector<GpuSnapshot>()> gpus = nullptr;  // null: there are none
    // Returns where a sample of that feed is stored; empty if not known. Null: never known. Called by the
    // threads that call Stuck and Hung.
    std::function<std::string(uint64_t feed, uint64_t sample)> sample_name = nullptr;
    bool watched = false;  // the caller feeds a watchdog while Stuck returns nothing
    // Returns the current operations of other threads; null: there are none. Called by the threads that call
    // Stuck and Hung.
    std::function<std::vector<OngoingOperation>()> operations = nullptr;
    const WorkerPool* readers = nullptr;                // null: there are none
    std::chrono::milliseconds operation_limit{10'000};  // for operations of WaitsFor::kDaemon
  };
  // A thread hangs if its work takes longer than `limit`. 0: no limit.
  ProgressCheck(Parts parts, std::chrono::milliseconds limit) : parts_(std::move(parts)), limit_(limit) {}

  // Returns why the daemon is stuck; empty if it is not.
  std::string Stuck();
  // Returns what hangs now: workers, readers, GPUs, then operations; in each pool the longest first. `gpus`
  // is the result of Parts::gpus.
  std::vector<HungThread> Hung(const std::vector<GpuSnapshot>& gpus) const;
  void SetLimit(std::chrono::milliseconds limit) { limit_ = limit; }
  // How often to call Stuck, so that it detects a hang soon after the limit; max() if there is no limit.
  std::chrono::milliseconds interval() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kHealthy, kPartlyHung, kStuck };
  void Enter(State state, const std::string& hung);
  // Adds the hanging threads of a pool, the longest first.
  void AddHung(const WorkerPool& pool, std::chrono::milliseconds limit, std::vector<HungThread>& hung) const;
  // Like Hung, without operations.
  std::vector<HungThread> HungAtBatches(const std::vector<GpuSnapshot>& gpus) const;
  // Returns the age from which the operation counts as hanging; max(): never.
  Clock::duration LimitOf(const OngoingOperation& operation) const;
  void LogSlowOperations(Clock::time_point now);

  const Parts parts_;
  std::atomic<std::chrono::milliseconds> limit_;
  State state_ = State::kHealthy;
  std::vector<OngoingOperation> logged_operations_;  // the hanging ones, already logged
  uint64_t done_ = 0;                                // chunks and copied bytes at the last call of Stuck
  Clock::time_point progressed_at_ = Clock::now();   // the last call of Stuck at which done_ had changed
};

}  // namespace pinfeed
