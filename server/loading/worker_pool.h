// SPDX-License-Identifier: Apache-2.0
// The host-wide threads that load samples. In: samples to load for batches, from all feeds. Out: each task's
// Done(), once all its samples are loaded.
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

// Purpose: samples of one batch to load. Owned by the pool from Submit until Done() has returned.
class FillTask {
 public:
  // `order`: of a feed's tasks, the one with the smallest goes first, and of equal ones the oldest.
  FillTask(std::shared_ptr<FeedShare> share, uint32_t samples, uint32_t chunk_samples, uint64_t order = 0)
      : share_(std::move(share)), samples_(samples), chunk_samples_(chunk_samples), order_(order) {}
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
  const uint64_t order_;
  uint32_t claimed_ = 0;     // guarded by the pool's mutex
  uint32_t unfinished_ = 0;  // guarded by the pool's mutex
};

// Purpose: runs tasks of the feed first that has got the least (this pool's time, and batches in hand at what
// they cost), and within a feed the oldest batch first; all threads join on one task. The feeds of one user
// have `max_per_user` threads at a time, so that storage of one user's that does not answer leaves some to
// the others. A daemon has a pool of each kind. Owns: threads and their scratch buffers. Borrows: nothing.
// Threads: Start and Submit from any thread (Submit also from Run and Done), Stop from the owner. Invariant:
// a task's Done runs exactly once, unless the pool is stopped before.
class WorkerPool {
 public:
  explicit WorkerPool(uint32_t threads, uint32_t max_per_user = UINT32_MAX,
                      PoolKind kind = PoolKind::kWorkers);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Starts the threads that do not run yet; none once the pool is stopped. Throws std::system_error when the
  // system gives no thread; those that run by then go on.
  void Start() PF_EXCLUDES(mutex_);
  // Lets running chunks finish, drops what is not claimed (destroying those tasks), joins. Idempotent.
  void Stop() PF_EXCLUDES(mutex_);

  void Submit(std::shared_ptr<FillTask> task) PF_EXCLUDES(mutex_);

  PoolKind kind() const { return kind_; }
  uint32_t threads() const { return thread_count_; }
  // "worker0" or "reader0" for thread 0.
  std::string ThreadName(uint32_t thread) const {
    return (kind_ == PoolKind::kWorkers ? "worker" : "reader") + std::to_string(thread);
  }
  // Chunks finished since the start: what a watchdog watches.
  uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }
  // For how long the thread that has been at its chunk the longest has been at it; 0 when all are idle.
  std::chrono::nanoseconds LongestChunk() const;
  // What threads have been at for longer than `limit`, the longest first.
  struct LongChunk {
    std::chrono::nanoseconds age{0};
    uint32_t thread = 0;
    uint64_t feed = 0;
    uint64_t sample = 0;  // of its dataset
  };
  std::vector<LongChunk> ChunksLongerThan(std::chrono::nanoseconds limit) const;
  // Threads that run a chunk right now.
  uint32_t busy() const { return busy_.load(std::memory_order_relaxed); }
  // What samples took since the start, all threads together.
  struct Durations {
    DurationCounts read;
    DurationCounts decode;
  };
  Durations durations() const;

 private:
  using Clock = std::chrono::steady_clock;
  // On a line of its own: each thread writes its own for every chunk.
  struct alignas(64) Began {
    std::atomic<Clock::rep> at{0};  // the chunk it is at; 0: idle
    std::atomic<uint64_t> feed{0};  // of that chunk
  };

  void Loop(uint32_t index, SampleScratch& scratch);
  // The task to work on next and the range claimed of it; null when there is none that may be.
  std::shared_ptr<FillTask> Claim(uint32_t* begin, uint32_t* end) PF_REQUIRES(mutex_);
  bool MayHaveThread(uid_t user) const PF_REQUIRES(mutex_);
  void Finish(const std::shared_ptr<FillTask>& task, uint32_t samples) PF_EXCLUDES(mutex_);

  const uint32_t thread_count_;
  const uint32_t max_per_user_;
  const PoolKind kind_;
  const std::vector<std::unique_ptr<SampleScratch>> scratches_;  // one a thread
  std::vector<Began> began_{thread_count_};                      // one a thread
  std::atomic<uint64_t> progress_{0};
  std::atomic<uint32_t> busy_{0};
  Mutex mutex_;
  CondVar work_;
  std::vector<std::shared_ptr<FillTask>> open_
      PF_GUARDED_BY(mutex_);                                 // with unclaimed samples, first ones first
  std::map<uid_t, uint32_t> working_ PF_GUARDED_BY(mutex_);  // threads at each user's, while it has some
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
