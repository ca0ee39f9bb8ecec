// SPDX-License-Identifier: Apache-2.0
// The host-wide threads that load samples. In: batches to fill, from all feeds. Out: each batch's Done(),
// once all its samples are loaded.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/sync.h"
#include "server/loading/feed_share.h"
#include "server/loading/sample_loader.h"

namespace pinfeed {

// Purpose: one batch to fill. Owned by the pool from Submit until Done() has returned.
class FillTask {
 public:
  FillTask(std::shared_ptr<FeedShare> share, uint32_t samples, uint32_t chunk_samples)
      : share_(std::move(share)), samples_(samples), chunk_samples_(chunk_samples) {}
  virtual ~FillTask() = default;
  FillTask(const FillTask&) = delete;
  FillTask& operator=(const FillTask&) = delete;
  // Loads samples [begin, end). Called from several workers at once for disjoint ranges.
  virtual void Run(uint32_t begin, uint32_t end, SampleScratch& scratch) = 0;
  // Called once, by the worker whose Run finished last; all writes of all Runs happen before it.
  virtual void Done() = 0;

 private:
  friend class WorkerPool;
  const FeedShareUse share_;
  const uint32_t samples_;        // >= 1
  const uint32_t chunk_samples_;  // samples claimed at once, >= 1
  uint32_t claimed_ = 0;          // guarded by the pool's mutex
  uint32_t unfinished_ = 0;       // likewise
};

// Purpose: runs tasks of the feed first that has got the least (served worker time, and batches in hand at
// what they cost), and within a feed the oldest batch first; all workers join on one batch. The feeds of one
// user have `max_per_user` workers at a time, so that storage of one user's that does not answer leaves some
// to the others. Owns: threads and their scratch buffers. Borrows: nothing. Threads: Submit from any thread
// (also from Run and Done). Start and Stop from the owner. Invariant: a task's Done runs exactly once, unless
// the pool is stopped before.
class WorkerPool {
 public:
  explicit WorkerPool(uint32_t threads, uint32_t max_per_user = UINT32_MAX);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Start() PF_EXCLUDES(mutex_);
  // Lets running chunks finish, drops what is not claimed (destroying those tasks), joins. Idempotent.
  void Stop() PF_EXCLUDES(mutex_);

  void Submit(std::shared_ptr<FillTask> task) PF_EXCLUDES(mutex_);

  uint32_t threads() const { return thread_count_; }
  static std::string ThreadName(uint32_t worker) { return "worker" + std::to_string(worker); }
  // Chunks finished since the start: what a watchdog watches.
  uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }
  // For how long the worker that has been at its chunk the longest has been at it; 0 when all are idle.
  std::chrono::nanoseconds LongestChunk() const;
  // What workers have been at for longer than `limit`, the longest first.
  struct LongChunk {
    std::chrono::nanoseconds age{0};
    uint32_t worker = 0;
    uint64_t feed = 0;
    uint64_t sample = 0;  // of its dataset
  };
  std::vector<LongChunk> ChunksLongerThan(std::chrono::nanoseconds limit) const;
  // Workers that run a chunk right now.
  uint32_t busy() const { return busy_.load(std::memory_order_relaxed); }
  // What samples took since the start, all workers together.
  struct Durations {
    DurationCounts read;
    DurationCounts decode;
  };
  Durations durations() const;

 private:
  using Clock = std::chrono::steady_clock;
  // On a line of its own: each worker writes its own for every chunk.
  struct alignas(64) Began {
    std::atomic<Clock::rep> at{0};  // the chunk it is at; 0: idle
    std::atomic<uint64_t> feed{0};  // of that chunk
  };

  void Loop(uint32_t index, SampleScratch& scratch);
  // The task to work on next and the range claimed of it; null when there is none that may be.
  std::shared_ptr<FillTask> Claim(uint32_t* begin, uint32_t* end) PF_REQUIRES(mutex_);
  bool MayHaveWorker(uid_t user) const PF_REQUIRES(mutex_);
  void Finish(const std::shared_ptr<FillTask>& task, uint32_t samples) PF_EXCLUDES(mutex_);

  const uint32_t thread_count_;
  const uint32_t max_per_user_;
  const std::vector<std::unique_ptr<SampleScratch>> scratches_;  // one a thread
  std::vector<Began> began_{thread_count_};                      // one a worker
  std::atomic<uint64_t> progress_{0};
  std::atomic<uint32_t> busy_{0};
  Mutex mutex_;
  CondVar work_;
  std::vector<std::shared_ptr<FillTask>> open_ PF_GUARDED_BY(mutex_);  // with unclaimed samples, oldest first
  std::map<uid_t, uint32_t> working_ PF_GUARDED_BY(mutex_);  // workers at each user's, while it has some
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // owner only
};

}  // namespace pinfeed
