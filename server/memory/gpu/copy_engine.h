// SPDX-License-Identifier: Apache-2.0
// Stage 6b of a batch: from pinned memory to its device slot. In: filled pieces. Out: the same bytes on the
// device.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/base/result.h"
#include "common/cuda/device.h"
#include "server/memory/gpu/copy_counts.h"
#include "server/memory/gpu/copy_queue.h"
#include "server/memory/gpu/copy_stream.h"

namespace pinfeed {

// Purpose: a copy thread of one GPU. It takes jobs from the queue to the stream, and calls readers that wait.
// A job is done when its copies have completed. Each GPU has an engine for copies from the host. If there are
// several GPUs, it has a second one for copies from the others: those use other links, and a single stream
// would use only one link at a time. Owns: queue, stream, thread. Threads: all methods from any thread; none
// blocks for the GPU. A job's `done` and a lane's reader are called on the copy thread without a lock.
// Errors: any driver error stops the engine. `on_failure` is called once; then all present and later jobs
// fail with kUnavailable. Invariant: every job's `done` is called exactly once. Afterwards, nothing reads its
// source or writes its target, except when the GPU is lost and does not report it. The engine then waits only
// briefly, because the process is about to exit.
class CopyEngine {
 public:
  // Waits until the copy thread can use the GPU, or `on_failure` was called because it cannot.
  // `name`: of the thread, before the GPU's number.
  static Result<std::unique_ptr<CopyEngine>> Create(std::shared_ptr<const CudaDevice> device,
                                                    const std::string& name,
                                                    std::function<void(const Status&)> on_failure);
  ~CopyEngine();

  // Where arenas submit jobs.
  CopyQueue& queue() { return queue_; }
  CopyCounts::Values counters() const { return counts_.Read(); }
  // Time since a copy last completed while copies are pending; 0 when none is.
  std::chrono::nanoseconds Stalled() const;
  const CudaDevice& device() const { return *device_; }
  const std::string& thread_name() const { return thread_name_; }

 private:
  using Clock = std::chrono::steady_clock;

  CopyEngine(std::shared_ptr<const CudaDevice> device, const std::string& name,
             std::function<void(const Status&)> on_failure, std::unique_ptr<CopyStream> stream)
      : device_(std::move(device)),
        thread_name_(name + "-" + std::to_string(device_->ordinal())),
        on_failure_(std::move(on_failure)),
        stream_(std::move(stream)) {}
  void Run();
  // Moves a job from the queue to the stream. Returns whether there was one, and sets `closed` otherwise.
  bool Begin(bool& closed);
  // Finishes completed jobs. Returns whether there were any.
  bool Finish();
  void Fail(const Status& cause);
  // Calls the waiting readers. Returns whether there are any.
  bool ReadReleases();
  void Pause();

  const std::shared_ptr<const CudaDevice> device_;
  const std::string thread_name_;
  const std::function<void(const Status&)> on_failure_;
  CopyQueue queue_;
  const std::unique_ptr<CopyStream> stream_;  // used by the copy thread only, like the following
  std::chrono::nanoseconds pause_{0};
  Clock::time_point next_read_;
  bool has_readers_ = false;  // whether the last call found waiting readers

  // When the copy thread last made progress: took its first job, or completed a copy while others were in
  // flight. 0: it has no job.
  std::atomic<Clock::rep> last_progress_{0};
  CopyCounts counts_;
  std::latch in_context_{1};  // the copy thread entered the GPU's context, or `on_failure` was called
  std::thread thread_;
};

}  // namespace pinfeed
