// SPDX-License-Identifier: Apache-2.0
// Stage 4 of the way of a batch: from pinned memory to its device slot. In: filled pieces. Out: the same
// bytes on the device.
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
#include "server/memory/arena.h"

namespace pinfeed {

// Purpose: one GPU's copy thread and its one high-priority stream. A job is done when its copies have
// completed, which the thread sees by a local event: nothing waits on the GPU for another process.
// Owns: stream, events, thread. Threads: all methods from any thread, none blocks for the GPU. A job's `done`
// and a lane's reader are called on the copy thread, without a lock. Errors: an error of the driver is the
// end of the engine: `on_failure` is called once, then every job that is or comes in gets it as kUnavailable.
// Invariants: 1. jobs of a lane are copied in order; 2. lanes take turns, a job each; 3. every job's `done`
// is called exactly once, after which nothing reads its source or writes its target, unless the GPU is lost
// and does not say so: the engine waits for it for a moment only, and the process is to end.
class CopyEngine {
 public:
  struct Copy {
    const std::byte* from = nullptr;  // registered host memory; null: from_device
    CUdeviceptr from_device = 0;      // of a GPU whose memory ours may read
    CUdeviceptr to = 0;
    uint64_t bytes = 0;
  };
  // Copies that end together, all from the host or all from one GPU. Precondition: there is one.
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
    uint64_t bytes = 0;        // likewise
    uint64_t peer_bytes = 0;   // from other GPUs
    uint64_t copy_ns = 0;      // the stream had something to do
    uint64_t queue_ns = 0;     // from a job's submission to its turn, all together
    uint64_t errors = 0;       // of the driver: the first one ends the engine
    DurationCounts durations;  // of jobs, from given to the driver to seen complete
  };

  static Result<std::unique_ptr<CopyEngine>> Create(std::shared_ptr<const CudaDevice> device,
                                                    std::function<void(const Status&)> on_failure);
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  // Purpose: one arena's place in the turns. Precondition of destruction: its jobs are done.
  class Lane {
   public:
    explicit Lane(CopyEngine& engine);
    ~Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    void Submit(Job job);
    const CudaDevice& device() const { return engine_.device(); }
    // While `waiting`, the reader is called every few microseconds, and seldomer (down to once a millisecond)
    // as long as that changes nothing.
    void SetWaiting(const std::shared_ptr<ReleaseReader>& reader, bool waiting);

   private:
    friend class CopyEngine;
    struct Waiting {
      Job job;
      std::chrono::steady_clock::time_point since;
    };
    // Takes the job, unless the engine has failed.
    Status Push(Job& job);
    CopyEngine& engine_;
    // All of the engine's lock.
    std::deque<Waiting> jobs_;
    std::weak_ptr<ReleaseReader> reader_;
    bool waiting_ = false;
  };

  Counters counters() const;
  // For how long no copy has ended although there was one to make; 0 when there is none.
  std::chrono::nanoseconds Stalled() const PF_EXCLUDES(mutex_);
  const CudaDevice& device() const { return *device_; }
  std::string ThreadName() const { return "copy-" + std::to_string(device_->ordinal()); }

 private:
  using Clock = std::chrono::steady_clock;
  struct InFlight {
    Job job;
    CUevent event = nullptr;
    Clock::time_point since;
  };

  CopyEngine(std::shared_ptr<const CudaDevice> device, std::function<void(const Status&)> on_failure)
      : device_(std::move(device)), on_failure_(std::move(on_failure)) {}
  Status Open();
  void Run();
  // The next lane's next job, in turns; false when there is none or enough is under way.
  bool NextJobLocked(Job* job) PF_REQUIRES(mutex_);
  Status Enqueue(Job* job);
  // Finishes what has completed; true when anything had.
  bool Retire();
  void Fail(const Status& cause) PF_EXCLUDES(mutex_);
  // Until what was given to the stream is over, but not for ever.
  void AwaitStream() const;
  // Calls the readers that wait. True when there are any.
  bool ReadReleases() PF_EXCLUDES(mutex_);
  void Pause() PF_EXCLUDES(mutex_);

  const std::shared_ptr<const CudaDevice> device_;
  const std::function<void(const Status&)> on_failure_;
  CUstream stream_ = nullptr;
  std::vector<CUevent> idle_events_;  // copy thread, as what follows
  std::deque<InFlight> in_flight_;
  uint64_t in_flight_bytes_ = 0;
  Clock::time_point busy_since_;
  std::chrono::nanoseconds pause_{0};
  Clock::time_point next_read_;
  bool readers_ = false;  // some waited when they were last called

  // When the copy thread last got on: took its first job, or ended a copy with others under way. 0: it has
  // none.
  std::atomic<Clock::rep> moved_{0};
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
  size_t turn_ PF_GUARDED_BY(mutex_) = 0;
  uint64_t changes_ PF_GUARDED_BY(mutex_) = 0;  // a job or a reader came
  Status failed_ PF_GUARDED_BY(mutex_);
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace pinfeed
