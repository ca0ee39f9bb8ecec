// SPDX-License-Identifier: Apache-2.0
// Local files that the page cache lacks. In: the pieces that workers load next, and how long their reads
// take. Out: reads that the storage makes meanwhile, many at a time.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "common/base/raise_to.h"
#include "common/base/sync.h"
#include "server/loading/batch_producer.h"
#include "server/loading/feed_share.h"
#include "server/loading/sample_loader.h"
#include "server/loading/worker_pool.h"
#include "server/order/sampler.h"

namespace pinfeed {

// Purpose: keeps a disk busy for one feed. The workers are as many as processors, so their own reads are too
// few at a time for a disk. Readers have it read the samples behind those at which the workers are, into the
// page cache: first those of the pieces that the feed has asked for, then those that follow by its order. Off
// until a worker's read is slow; off again when all that it asks for is in the page cache, or too late. It
// changes only when bytes are read: workers read them as without it, with the same errors. Owns: a share of
// the loader, and one of its own in the readers, so that the feed's end does not wait for a reader that
// hangs. Borrows: the readers, which outlive it. Threads: any; tasks on the readers share it. Errors: none.
// Invariants: 1. at most kWindowBytes, or a few samples, are read ahead of the workers; 2. a position is
// asked for once, unless the feed goes back to it.
class ReadAhead final : public std::enable_shared_from_this<ReadAhead> {
 public:
  // Until the size of samples is known; at least, and at most.
  static constexpr uint64_t kFirstWindow = 16;
  static constexpr uint64_t kMinWindow = 4;
  static constexpr uint64_t kMaxWindow = 4096;
  static constexpr uint64_t kWindowBytes = uint64_t{64} << 20;
  // A read of a worker that took longer may have waited for the disk.
  static constexpr uint64_t kSlowReadNs = 15'000;
  // One that took so long did wait for a disk, as far as can be told, so nothing keeps read-ahead off.
  static constexpr uint64_t kSurelySlowReadNs = 4'000'000;
  // So many samples in a row that were in the page cache, or at which a worker was first, switch it off;
  // fewer, if it has found no other since it was switched on. It stays off for a while then, the longer the
  // more often it was for nothing.
  static constexpr uint64_t kUselessRun = 256;
  static constexpr uint64_t kFalseAlarmRun = 32;
  static constexpr uint64_t kMinQuiet = 256;
  static constexpr uint64_t kMaxQuiet = 16'384;
  // The requests under way. More would be of samples at which the workers have been by then.
  static constexpr uint32_t kMaxTasks = 16;

  // `epochs`: of the feed, as in its spec.
  ReadAhead(std::shared_ptr<const SampleLoader> loader, Sampler sampler, uint64_t epochs,
            WorkerPool& readers);

  // The workers load samples of this batch next, from `begin` on, for the feed that has this share. Returns
  // the place of the first one in the order of loading.
  uint64_t Add(const BatchPlan& plan, uint32_t begin, const FeedShare& feed) PF_EXCLUDES(mutex_);
  // A worker begins with the sample at this place.
  void Begin(uint64_t place) {
    Advance(place);
    if (MayAsk() && place >= ask_from_.load(std::memory_order_relaxed)) Continue();
  }
  // Reading the sample at this place took a worker so long.
  void Took(uint64_t place, uint64_t read_ns) {
    if (read_ns < kSlowReadNs || on_.load(std::memory_order_relaxed)) return;
    const bool surely = read_ns >= kSurelySlowReadNs;
    if (surely || place >= quiet_until_.load(std::memory_order_relaxed)) SwitchOn(place, surely);
  }
  // No piece is wanted any more.
  void Stop() PF_EXCLUDES(mutex_);
  ReadAheadUse use() const PF_EXCLUDES(mutex_);

 private:
  class Task;
  // The samples [begin, end) of a batch, at places from `first` on.
  struct Range {
    uint64_t first = 0;
    BatchPlan plan;
    uint32_t begin = 0;
    uint32_t end = 0;

    uint64_t past() const { return first + (end - begin); }
  };
  // What some samples of a task were.
  struct Tally {
    uint64_t samples = 0;  // asked for
    uint64_t bytes = 0;
    uint64_t cold_samples = 0;  // that the page cache lacked
    uint64_t cold_bytes = 0;    // of those
    // At the end: that the page cache had, or at which a worker was before the reader.
    uint64_t useless_run = 0;
  };

  void Advance(uint64_t place) { RaiseTo(place, begun_, std::memory_order_relaxed); }
  bool MayAsk() const {
    return on_.load(std::memory_order_relaxed) && tasks_.load(std::memory_order_relaxed) < kMaxTasks;
  }
  void Continue() PF_EXCLUDES(mutex_);
  void SwitchOn(uint64_t place, bool surely) PF_EXCLUDES(mutex_);
  uint64_t PlaceOf(const BatchPlan& plan, uint32_t begin) PF_REQUIRES(mutex_);
  void Append(const BatchPlan& plan, uint32_t begin) PF_REQUIRES(mutex_);
  // Appends the batch that follows in the feed's order. False: there is none.
  bool Extend() PF_REQUIRES(mutex_);
  // Asks for what may be read now; null: nothing.
  std::shared_ptr<FillTask> Next() PF_REQUIRES(mutex_);
  // Whether a worker has not come to it yet.
  bool Ahead(uint64_t place) const { return place > begun_.load(std::memory_order_relaxed); }
  void Note(const Tally& tally) PF_EXCLUDES(mutex_);

  const std::shared_ptr<const SampleLoader> loader_;
  const Sampler sampler_;
  const uint64_t epochs_;
  WorkerPool& readers_;
  std::atomic<bool> on_{false};
  std::atomic<uint64_t> begun_{0};  // the last place at which a worker began
  // So that many workers do not meet at the lock for nothing. Written under it.
  std::atomic<uint64_t> ask_from_{0};     // place of a worker before which Next has nothing
  std::atomic<uint64_t> quiet_until_{0};  // place before which it stays off
  std::atomic<uint32_t> tasks_{0};        // that are not destroyed
  mutable Mutex mutex_;
  bool stopped_ PF_GUARDED_BY(mutex_) = false;
  std::shared_ptr<FeedShare> share_ PF_GUARDED_BY(mutex_);  // null before the first piece
  std::deque<Range> ranges_ PF_GUARDED_BY(mutex_);  // without gaps; at most kMaxSlots are begun already
  BatchPlan last_ PF_GUARDED_BY(mutex_);            // of the last range there ever was
  uint64_t end_ PF_GUARDED_BY(mutex_) = 0;          // of that range
  uint64_t next_ PF_GUARDED_BY(mutex_) = 0;         // place to ask for
  uint64_t on_from_ PF_GUARDED_BY(mutex_) = 0;      // place of a worker when it was switched on
  uint64_t quiet_ PF_GUARDED_BY(mutex_) = kMinQuiet;
  bool found_cold_ PF_GUARDED_BY(mutex_) = false;  // since it was switched on
  uint64_t useless_run_ PF_GUARDED_BY(mutex_) = 0;
  uint64_t samples_ PF_GUARDED_BY(mutex_) = 0;  // asked for so far
  uint64_t bytes_ PF_GUARDED_BY(mutex_) = 0;    // of those
  ReadAheadUse use_ PF_GUARDED_BY(mutex_);      // but for `on`
};

}  // namespace pinfeed
