// SPDX-License-Identifier: Apache-2.0
// The host-wide threads that load samples. In: samples to load for batches, from all feeds. Out: each task's
// Done(), once all its samples are loaded.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "server/loading/feed_share.h"
#include "server/loading/sample_loader.h"

namespace pinfeed {

// Purpose: the samples of one batch, or of a piece of it, that a pool loads. Owned by the pool from Submit
// until Done() has returned.
class FillTask {
 public:
  // Among the tasks of a feed, the one with the smallest `order` comes first; among equal ones, the oldest.
  FillTask(std::shared_ptr<FeedShare> share, uint32_t samples, uint32_t chunk_samples, uint64_t order = 0)
      : share_(std::move(share)),
        samples_(samples),
        chunk_samples_(chunk_samples),
        order_(order),
        unfinished_(samples) {}
  virtual ~FillTask() = default;
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
  uint32_t claimed_ = 0;  // guarded by the pool's mutex
  std::atomic<uint32_t> unfinished_;
};

// Purpose: a task of two functions, which own what they need.
class FunctionTask final : public FillTask {
 public:
  using Work = std::function<void(uint32_t begin, uint32_t end, SampleScratch& scratch)>;
  FunctionTask(
      std::shared_ptr<FeedShare> share, uint32_t samples, Work run, std::function<void()> done = [] {})
      : FillTask(std::move(share), samples, 1), run_(std::move(run)), done_(std::move(done)) {}

  void Run(uint32_t begin, uint32_t end, SampleScratch& scratch) override { run_(begin, end, scratch); }
  void Done() override { done_(); }

 private:
  const Work run_;
  const std::function<void()> done_;
};

// Purpose: loads samples of all feeds. It serves the feed first that was served least (FeedShare::Got), and
// within a feed the oldest batch. All threads work on one task together, or as many as its feed may have
// (FeedShare::MaxWorkers). Feeds that are short of memory use half of the threads. The feeds of one user use
// at most `max_per_user` threads at a time, so that hung storage of one user leaves threads to the others.
// Threads that have nothing else take idle work, a chunk at a time; where there are several, one stays free,
// and what a feed with tasks is to leave free. A daemon has one pool of each kind. Owns: threads and their
// scratch buffers, which a thread gives back once it has been idle for `keeps_buffers`. Borrows: nothing.
// Threads: Start and Submit from any thread (Submit also from Run and Done), Stop from the owner; the figures
// from any thread. Errors: only Start fails, by an exception; a task handles the errors of its samples.
// Invariant: a task's Done runs exactly once, unless the pool is stopped before.
class WorkerPool {
 public:
  explicit WorkerPool(uint32_t threads, uint32_t max_per_user = UINT32_MAX,
                      PoolKind kind = PoolKind::kWorkers,
                      std::chrono::nanoseconds keeps_buffers = std::chrono::seconds(2));
  ~WorkerPool();

  // Starts all threads that are not running yet; does nothing after Stop. Throws std::system_error if the
  // system cannot create a thread; the threads started so far keep running.
  void Start() PF_EXCLUDES(mutex_);
  // Waits for running chunks, destroys tasks with unclaimed samples, and joins the threads. Idempotent.
  void Stop() PF_EXCLUDES(mutex_);

  void Submit(std::shared_ptr<FillTask> task) { Add(std::move(task), false); }
  // Its chunks run only while no submitted task can use another thread.
  void SubmitIdle(std::shared_ptr<FillTask> task) { Add(std::move(task), true); }
  // Destroys the idle tasks of this share that have unclaimed samples: their Done is not called.
  void WithdrawIdle(const FeedShare& share) PF_EXCLUDES(mutex_);

  PoolKind kind() const { return kind_; }
  uint32_t threads() const { return thread_count_; }
  // "worker0" or "reader0" for thread 0.
  std::string ThreadName(uint32_t thread) const {
    return (kind_ == PoolKind::kWorkers ? "worker" : "reader") + std::to_string(thread);
  }
  // The number of chunks finished since the start. A watchdog checks whether it grows.
  uint64_t progress() const;
  // Returns the age of the oldest chunk in progress; 0 if all threads are idle.
  std::chrono::nanoseconds LongestChunk() const;
  // A chunk in progress.
  struct LongChunk {
    std::chrono::nanoseconds age{0};
    uint32_t thread = 0;
    uint64_t feed = 0;
    uint64_t sample = 0;  // the current sample, as its index in the dataset
  };
  // Returns the chunks in progress that are older than `limit`, the oldest first.
  std::vector<LongChunk> ChunksLongerThan(std::chrono::nanoseconds limit) const;
  // The number of threads that are working on a chunk now.
  uint32_t busy() const;
  // How long samples took since the start, for all threads together.
  struct Durations {
    DurationCounts read;
    DurationCounts decode;
  };
  Durations durations() const;

 private:
  using Clock = std::chrono::steady_clock;
  // What one thread is doing. Each has its own cache line, because its thread writes it for every chunk.
  struct alignas(64) Activity {
    std::atomic<Clock::rep> since{0};   // when the current chunk was begun; 0: idle
    std::atomic<uint64_t> feed{0};      // of that chunk
    std::atomic<uint64_t> finished{0};  // chunks
  };

  using Tasks = std::vector<std::shared_ptr<FillTask>>;
  struct Queue {
    Tasks tasks;            // with unclaimed samples; each feed's in serving order
    uint64_t level_ns = 0;  // the most that a feed had been served when its task was chosen
  };
  // Samples [begin, end) of a task; null: of none.
  struct Chunk {
    std::shared_ptr<FillTask> task;
    std::shared_ptr<FeedShare> share;  // the task's
    uint32_t begin = 0;
    uint32_t end = 0;
    bool idle = false;
    bool short_of_memory = false;  // its feed was, when it was claimed
    bool finished_task = false;    // it was the last one to end
  };

  // Wakes the chosen threads when it is destroyed, after the lock is released, since waking takes long. At
  // most two: each thread that was woken wakes more.
  struct Wake {
    static constexpr size_t kThreads = 2;

    Wake() = default;
    ~Wake() {
      for (CondVar* const thread : threads)
        if (thread != nullptr) thread->NotifyOne();
    }
    Wake(const Wake&) = delete;
    Wake& operator=(const Wake&) = delete;

    std::array<CondVar*, kThreads> threads{};
  };

  void Loop(uint32_t index, SampleScratch& scratch);
  void Add(std::shared_ptr<FillTask> task, bool idle) PF_EXCLUDES(mutex_);
  void Insert(std::shared_ptr<FillTask> task, Queue& queue, Wake& wake) PF_REQUIRES(mutex_);
  // Moves sleeping threads to `wake` while more chunks can be claimed than threads are on their way.
  // `finishing`: threads that will soon look for work by themselves.
  void TakeSleeping(uint32_t finishing, Wake& wake) PF_REQUIRES(mutex_);
  Chunk Claim() PF_REQUIRES(mutex_);
  // Of the next of these tasks that may have another thread now.
  Chunk ClaimFrom(Queue& queue) PF_REQUIRES(mutex_);
  // More threads that this feed may have now.
  uint32_t MoreThreads(const FeedShare& share) const PF_REQUIRES(mutex_);
  // Whether a feed may have so few threads that not all may load for it at once.
  bool IsLimit(uint32_t max_workers) const {
    return kind_ == PoolKind::kWorkers && max_workers < thread_count_;
  }
  // After the chunk, and Done if it was the last one.
  void Leave(const Chunk& chunk) PF_REQUIRES(mutex_);
  // Whether a thread may do idle work besides those that do.
  bool MayIdle() const PF_REQUIRES(mutex_);
  // Whether so many threads could each claim a chunk now. May be false too early for feeds that may not have
  // all threads.
  bool HasClaimableFor(uint32_t threads) const PF_REQUIRES(mutex_);
  // Counts the chunks that can be claimed now, up to about `at_most`. Feeds that may not have all threads
  // count as the largest one of them.
  uint64_t Claimable(const Queue& queue, uint32_t at_most) const PF_REQUIRES(mutex_);

  const uint32_t thread_count_;
  const uint32_t max_per_user_;
  const PoolKind kind_;
  const std::chrono::nanoseconds keeps_buffers_;
  const std::vector<std::unique_ptr<SampleScratch>> scratches_;  // one a thread
  std::vector<Activity> activities_{thread_count_};              // one a thread
  Mutex mutex_;
  std::vector<CondVar> work_{thread_count_};  // one a thread, so that it is known which was woken
  // The last one is woken first: it fell asleep last, so its processor's caches are warm. Those that gave
  // their buffers back are at the front.
  std::vector<CondVar*> sleeping_ PF_GUARDED_BY(mutex_);
  uint32_t waking_ PF_GUARDED_BY(mutex_) = 0;  // threads that were woken and have yet to come
  Queue open_ PF_GUARDED_BY(mutex_);
  Queue idle_ PF_GUARDED_BY(mutex_);
  uint32_t idling_ PF_GUARDED_BY(mutex_) = 0;                // threads that do idle work
  uint32_t short_of_memory_ PF_GUARDED_BY(mutex_) = 0;       // threads on chunks that are
  std::map<uid_t, uint32_t> working_ PF_GUARDED_BY(mutex_);  // threads per user, if any
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
