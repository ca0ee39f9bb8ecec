// SPDX-License-Identifier: Apache-2.0
// Stage 6b of a batch: from pinned memory to its device slot. In: filled pieces. Out: the same bytes on the
// device.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/histogram.h"
#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/cuda/device.h"
#include "common/cuda/stream.h"
#include "server/memory/arena.h"

namespace pinfeed {

// Purpose: one GPU's copy thread with its high-priority stream. A job is done when its copies have completed.
// The thread detects that with a local event, so nothing waits on the GPU for another process.
// Owns: stream, events, thread.
// Threads: all methods from any thread; none blocks for the GPU. A job's `done` and a lane's reader are
// called on the copy thread without a lock.
// Errors: any driver error stops the engine. `on_failure` is called once; then all present and later jobs
// fail with kUnavailable.
// Invariants:
// 1. Jobs of a lane are copied in order.
// 2. Lanes take turns, one job each.
// 3. Every job's `done` is called exactly once. Afterwards, nothing reads its source or writes its target,
//    except when the GPU is lost and does not report it. The engine then waits only briefly, because the
//    process is about to exit.
class CopyEngine {
 public:
  struct Copy {
    const std::byte* from = nullptr;  // registered host memory; null: from_device
    CUdeviceptr from_device = 0;      // on a GPU whose memory this one may read
    CUdeviceptr to = 0;
    uint64_t bytes = 0;
  };
  // Copies that complete together, all from the host or all from one GPU. Precondition: at least one.
  struct Job {
    std::vector<Copy> copies;
    Arena::Done done;
    bool from_host() const { return copies.front().from != nullptr; }
    uint64_t bytes() const {
      uint64_t sum = 0;
      for (const Copy& copy : copies) sum += copy.bytes;
      return sum;
    }
  };
  struct Counters {
    uint64_t copies = 0;       // jobs from the host
    uint64_t bytes = 0;        // from the host
    uint64_t peer_bytes = 0;   // from other GPUs
    uint64_t copy_ns = 0;      // time in which the stream was busy
    uint64_t queue_ns = 0;     // total time between submission and start of jobs
    uint64_t errors = 0;       // driver errors; the first one stops the engine
    DurationCounts durations;  // of jobs, from submission to the driver to detected completion
  };

  static Result<std::unique_ptr<CopyEngine>> Create(std::shared_ptr<const CudaDevice> device,
                                                    std::function<void(const Status&)> on_failure);
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  // Purpose: one arena's queue in the round robin. Precondition of destruction: its jobs are done.
  class Lane {
   public:
    explicit Lane(CopyEngine& engine);
    ~Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    void Submit(Job job);
    const CudaDevice& device() const { return engine_.device(); }
    // While `waiting`, the reader is called every few microseconds. While nothing changes, the interval grows
    // to one millisecond.
    void SetWaiting(const std::shared_ptr<ReleaseReader>& reader, bool waiting);

   private:
    friend class CopyEngine;
    struct QueuedJob {
      Job job;
      std::chrono::steady_clock::time_point since;
    };
    // Queues the job unless the engine has failed.
    Status Push(Job& job);
    CopyEngine& engine_;
    // The following are guarded by the engine's lock.
    std::deque<QueuedJob> jobs_;
    std::weak_ptr<ReleaseReader> reader_;
    bool waiting_ = false;
  };

  Counters counters() const;
  // Time since a copy last completed while copies are pending; 0 when none is.
  std::chrono::nanoseconds Stalled() const PF_EXCLUDES(mutex_);
  const CudaDevice& device() const { return *device_; }
  std::string ThreadName() const { return "copy-" + std::to_string(device_->ordinal()); }

 private:
  using Clock = std::chrono::steady_clock;
  struct InFlight {
    Job job;
    UniqueCudaEvent event;
    Clock::time_point since;
  };

  CopyEngine(std::shared_ptr<const CudaDevice> device, std::function<void(const Status&)> on_failure)
      : device_(std::move(device)), on_failure_(std::move(on_failure)) {}
  Status Open();
  void Run();
  // Takes the next job in round-robin order. False when there is none or enough copies are in flight.
  bool NextJobLocked(Job* job) PF_REQUIRES(mutex_);
  Status Enqueue(Job* job);
  // Finishes completed jobs. Returns whether there were any.
  bool Retire();
  void Fail(const Status& cause) PF_EXCLUDES(mutex_);
  // Waits until the stream is idle, with a time limit.
  void DrainStream() const;
  // Calls the waiting readers. Returns whether there are any.
  bool ReadReleases() PF_EXCLUDES(mutex_);
  void Pause() PF_EXCLUDES(mutex_);

  const std::shared_ptr<const CudaDevice> device_;
  const std::function<void(const Status&)> on_failure_;
  UniqueCudaStream stream_;                   // destroyed after the events, which are members below it
  std::vector<UniqueCudaEvent> idle_events_;  // used by the copy thread only, like the following
  std::deque<InFlight> in_flight_;
  uint64_t in_flight_bytes_ = 0;
  Clock::time_point busy_since_;
  std::chrono::nanoseconds pause_{0};
  Clock::time_point next_read_;
  bool has_readers_ = false;  // whether the last call found waiting readers

  // When the copy thread last made progress: took its first job, or completed a copy while others were in
  // flight. 0: it has no job.
  std::atomic<Clock::rep> last_progress_{0};
  std::atomic<uint64_t> copies_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> peer_bytes_{0};
  std::atomic<uint64_t> copy_ns_{0};
  std::atomic<uint64_t> queue_ns_{0};
  std::atomic<uint64_t> errors_{0};
  DurationHistogram durations_;  // written by the copy thread

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Lane*> lanes_ PF_GUARDED_BY(mutex_);
  size_t next_lane_ PF_GUARDED_BY(mutex_) = 0;
  uint64_t changes_ PF_GUARDED_BY(mutex_) = 0;  // new jobs or readers since the last pause
  Status failed_ PF_GUARDED_BY(mutex_);
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace pinfeed
