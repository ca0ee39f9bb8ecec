// SPDX-License-Identifier: Apache-2.0
// The decoded cache while workers have nothing to do. In: where a feed is in its order. Out: the images that
// it comes to next, decoded.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/raise_to.h"
#include "common/base/sync.h"
#include "server/loading/feed_share.h"
#include "server/loading/image_source.h"
#include "server/loading/sample_loader.h"
#include "server/loading/worker_pool.h"
#include "server/order/order_places.h"

namespace pinfeed {

// Purpose: puts images of one feed into the cache before the feed comes to them. A reader reads some files,
// workers without other work decode them, and so on, until the cache has all of the next epoch or refuses
// images. Then it rests until the feed has moved on, so that a feed at rest costs nothing. Errors, and images
// that the cache does not keep, are left to the feed. Owns: a share of the loader, and a FeedShare of its
// own, so that the feed's end does not wait for a reader that hangs. Borrows: the pools, which outlive it.
// Threads: any; tasks on the pools share it. Errors: none. Invariants: 1. one task is under way at most; 2.
// no worker waits for storage; 3. at most kMaxFiles files are held, and less than kMaxBytes + kMaxFileBytes.
class CacheFill final : public std::enable_shared_from_this<CacheFill> {
 public:
  static constexpr uint32_t kMaxFiles = 32;
  static constexpr uint64_t kMaxBytes = uint64_t{4} << 20;
  static constexpr uint64_t kMaxFileBytes = uint64_t{16} << 20;  // larger ones are left to the feed
  // The filling rests after kRefusals images of one task that the cache refused, or kCachedRun in a row that
  // it had already. kMinRest and kMaxRest count samples that the feed loads meanwhile.
  static constexpr uint32_t kRefusals = 4;
  static constexpr uint64_t kCachedRun = 256;
  static constexpr uint64_t kMinRest = 64;
  static constexpr uint64_t kMaxRest = 4096;

  // Precondition: the cache serves `loader`. `sampler`: of this spec.
  CacheFill(std::shared_ptr<const SampleLoader> loader, Sampler sampler, const FeedSpec& spec,
            WorkerPool& workers, WorkerPool& readers);

  // A worker begins with a sample of this batch, for the feed that has this share.
  void Begin(const BatchPlan& plan, uint32_t index, const FeedShare& feed) {
    const uint64_t place = places_.Of(plan, index);
    RaiseTo(place, begun_, std::memory_order_relaxed);
    if (place >= resume_at_.load(std::memory_order_relaxed)) Resume(feed);
  }
  // Nothing is decoded any more.
  void Stop() PF_EXCLUDES(mutex_);

 private:
  class DecodeTask;
  static constexpr uint64_t kNever = UINT64_MAX;

  // An image that is to be decoded.
  struct File {
    uint64_t place = 0;
    CacheableFile contents;
  };

  void Resume(const FeedShare& feed) PF_EXCLUDES(mutex_);
  void SubmitRead() PF_EXCLUDES(mutex_);
  // From next_ on. None: there is nothing to do now. Throws std::bad_alloc.
  std::vector<File> Read(SampleScratch& scratch);
  void OnRead(std::vector<File> files) PF_EXCLUDES(mutex_);
  // `refused`: the place of the first image that was refused, if they were too many.
  void OnDecoded(bool kept_any, std::optional<uint64_t> refused) PF_EXCLUDES(mutex_);
  // The longer, the more often there was nothing to do.
  void Rest();
  // Whether a worker has not come to it yet, and is still to do so.
  bool Ahead(uint64_t place) const {
    return place > begun_.load(std::memory_order_relaxed) && !stopped_.load(std::memory_order_relaxed);
  }

  const std::shared_ptr<const SampleLoader> loader_;
  OrderPlaces places_;
  WorkerPool& workers_;
  WorkerPool& readers_;
  std::atomic<uint64_t> begun_{0};      // the last place at which a worker began
  std::atomic<uint64_t> resume_at_{0};  // the place at which it goes on; kNever while it is at work
  std::atomic<bool> stopped_{false};
  Mutex mutex_;                                             // Stop comes before or after a Submit
  std::shared_ptr<FeedShare> share_ PF_GUARDED_BY(mutex_);  // null before the first sample
  // Of the one task that is under way:
  uint64_t next_ = 0;  // the place to look at
  uint64_t rest_ = kMinRest;
  uint64_t cached_run_ = 0;     // samples in a row of which there was nothing to decode
  uint32_t files_ = kRefusals;  // to be read at once; few until the cache has kept one
};

}  // namespace pinfeed
