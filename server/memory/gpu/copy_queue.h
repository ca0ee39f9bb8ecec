// SPDX-License-Identifier: Apache-2.0
// The jobs and readers that wait for a copy thread. In: copies that arenas submit. Out: the next job,
// one arena after the other.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/cuda/device.h"
#include "server/memory/arena.h"

namespace pinfeed {

// Copies that complete together, all from the host or all from one GPU. Precondition: at least one.
struct CopyJob {
  struct Copy {
    const std::byte* from = nullptr;  // registered host memory; null: from_device
    CUdeviceptr from_device = 0;      // on a GPU whose memory this one may read
    CUdeviceptr to = 0;
    uint64_t bytes = 0;
  };
  std::vector<Copy> copies;
  Arena::Done done;
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Copy& copy : copies) sum += copy.bytes;
    return sum;
  }
};

// Purpose: the arenas' jobs in the round robin of one copy thread. Owns: the jobs until they are taken.
// Borrows: the readers, weakly. Threads: lanes from any thread; the rest by the copy thread, except Close and
// WaitingSince. Errors: after Fail, every job that is submitted fails at once. Invariants: 1. jobs of a lane
// are taken in order; 2. lanes take turns, one job each.
class CopyQueue {
 public:
  using Clock = std::chrono::steady_clock;
  struct WaitingJob {
    CopyJob job;
    Clock::time_point since;
  };

 private:
  struct LaneState {
    std::deque<WaitingJob> jobs;
    std::weak_ptr<ReleaseReader> reader;
    bool waiting = false;
  };

 public:
  // Purpose: one arena's place in the round robin. Borrows: the queue, which outlives it. Threads: any; none
  // of its methods blocks. Precondition of destruction: its jobs are done.
  class Lane {
   public:
    explicit Lane(CopyQueue& queue) : queue_(queue), state_(queue.AddLane()) {}
    ~Lane() { queue_.RemoveLane(state_); }
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    void Submit(CopyJob job) { queue_.Submit(state_, std::move(job)); }
    // While `waiting`, the reader is called every few microseconds. While nothing changes, the interval grows
    // to one millisecond.
    void SetWaiting(const std::shared_ptr<ReleaseReader>& reader, bool waiting) {
      queue_.SetWaiting(state_, reader, waiting);
    }

   private:
    CopyQueue& queue_;
    LaneState& state_;
  };

  // Takes the next job. Null when there is none; `closed` then says whether Close was called.
  std::optional<WaitingJob> Take(bool& closed) PF_EXCLUDES(mutex_);
  // The readers that wait.
  std::vector<std::shared_ptr<ReleaseReader>> Readers() const PF_EXCLUDES(mutex_);
  // Returns whether a job or a reader was added since the last call that returned true. If not, waits for
  // one, or for `limit`, if any, and returns false.
  bool AwaitChange(std::optional<std::chrono::nanoseconds> limit) PF_EXCLUDES(mutex_);
  // Fails the later jobs with `error`, and returns those that wait. Nothing if that was done before.
  std::optional<std::vector<CopyJob>> Fail(const Status& error) PF_EXCLUDES(mutex_);
  // Wakes the copy thread for its end. Precondition: there are no lanes.
  void Close() PF_EXCLUDES(mutex_);
  // Since when the oldest job has waited; nothing if none waits.
  std::optional<Clock::time_point> WaitingSince() const PF_EXCLUDES(mutex_);

 private:
  LaneState& AddLane() PF_EXCLUDES(mutex_);
  void RemoveLane(const LaneState& lane) PF_EXCLUDES(mutex_);
  void Submit(LaneState& lane, CopyJob job) PF_EXCLUDES(mutex_);
  // Queues the job unless the queue has failed.
  Status Push(LaneState& lane, CopyJob& job) PF_EXCLUDES(mutex_);
  void SetWaiting(LaneState& lane, const std::shared_ptr<ReleaseReader>& reader, bool waiting)
      PF_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<LaneState>> lanes_ PF_GUARDED_BY(mutex_);
  size_t next_lane_ PF_GUARDED_BY(mutex_) = 0;
  uint64_t changes_ PF_GUARDED_BY(mutex_) = 0;  // new jobs or readers since the last AwaitChange
  Status failed_ PF_GUARDED_BY(mutex_);
  bool closed_ PF_GUARDED_BY(mutex_) = false;
};

}  // namespace pinfeed
