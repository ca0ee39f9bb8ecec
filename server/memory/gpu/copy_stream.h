// SPDX-License-Identifier: Apache-2.0
// The copies that a GPU is carrying out. In: copy jobs. Out: the same jobs once they are complete, in order.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/cuda/device.h"
#include "common/cuda/stream.h"
#include "server/memory/gpu/copy_queue.h"

namespace pinfeed {

// Purpose: a high-priority stream of one GPU for copies. It detects completion with a local event, so nothing
// waits on the GPU for another process. Owns: stream, events, the jobs in flight. Threads: the copy thread
// only, with the GPU's context current, from the second call on. Errors: those of the driver; the caller then
// calls Abandon. Invariant: nothing reads a job's source or writes its target after Take or Abandon returned
// it, except when the GPU is lost and does not report it.
class CopyStream {
 public:
  using Clock = std::chrono::steady_clock;
  struct Copied {
    CopyJob job;
    Clock::time_point enqueued;
    Clock::time_point begin;  // when the stream began it, as far as it is known
    Clock::time_point end;    // when it was seen to be complete
  };

  static Result<std::unique_ptr<CopyStream>> Create(std::shared_ptr<const CudaDevice> device);

  // Whether another job may be enqueued.
  bool HasRoom() const;
  bool empty() const { return in_flight_.empty(); }
  // Precondition: !empty().
  uint64_t oldest_bytes() const { return in_flight_.front().job.bytes(); }
  // Takes the job, unless there is an error.
  Status Enqueue(CopyJob& job);
  // Takes the oldest job if it is complete.
  Result<std::optional<Copied>> Take();
  // Waits until the stream is idle, with a time limit, and returns the jobs in flight.
  std::vector<CopyJob> Abandon();

 private:
  struct InFlight {
    CopyJob job;
    UniqueCudaEvent event;
    Clock::time_point since;
  };

  explicit CopyStream(std::shared_ptr<const CudaDevice> device) : device_(std::move(device)) {}
  Status Open();
  void Drain() const;

  const std::shared_ptr<const CudaDevice> device_;
  UniqueCudaStream stream_;  // destroyed after the events, which are members below it
  std::vector<UniqueCudaEvent> idle_events_;
  std::deque<InFlight> in_flight_;
  uint64_t in_flight_bytes_ = 0;
  Clock::time_point busy_since_;
};

}  // namespace pinfeed
