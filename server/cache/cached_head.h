// SPDX-License-Identifier: Apache-2.0
// The cache as one feed uses it. In: an image file of a sample. Out: what the fixed first transforms of the
// feed make of it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/spec/feed_spec.h"
#include "server/cache/decoded_cache.h"
#include "server/dataset/dataset.h"
#include "server/image/decode.h"
#include "server/transform/geometry_plan.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {

// The cache and the user whose feed uses it.
struct CacheAccess {
  DecodedCache* cache = nullptr;  // null: there is none
  uid_t user = 0;
};

// Purpose: the head of a feed's transforms, those before the first that varies, whose result the cache keeps.
// Without any, it is the whole decoded image. Borrows: the cache and the transforms, which outlive it.
// Threads: any. Errors: none; what the cache cannot give, the caller makes.
class CachedHead {
 public:
  // Precondition: access.cache is not null; `transforms` are those of `spec`, which was checked.
  CachedHead(const CacheAccess& access, const FeedSpec& spec, const DatasetInfo& dataset,
             const TransformChain& transforms);
  ~CachedHead();

  // The transforms that are applied to what the cache gives are those from this one on.
  size_t transforms() const { return count_; }
  // Null: the cache does not have it.
  DecodedCache::Image Find(const FileVersion& file, uint64_t sample);
  // Whether Find would find it now. Counts as no use.
  bool Has(const FileVersion& file) const { return cache_.Has(file, name_); }
  // Makes the head's result and has the cache keep it. Null: it does not want it, or the image is bad; the
  // decoder has the image open then. Preconditions: `decoder` has just opened `encoded`, an image of `size`,
  // the contents of `file`.
  DecodedCache::Image Make(const FileVersion& file, uint64_t sample, std::span<const std::byte> encoded,
                           ImageSize size, ImageDecoder& decoder, GeometryScratch& scratch,
                           DecodedCache::Evict evict = DecodedCache::Evict::kLater) const;
  // The same before the feed comes to the sample. Takes the place of no image that a feed will use. Returns
  // whether the cache keeps it.
  bool MakeAhead(const FileVersion& file, uint64_t sample, std::span<const std::byte> encoded, ImageSize size,
                 ImageDecoder& decoder, GeometryScratch& scratch) const;

  // The feed has come to this place of its order.
  void At(const NextUse::Place& place) { uses_->At(place); }
  uint64_t hits() const { return hits_.load(std::memory_order_relaxed); }
  uint64_t misses() const { return misses_.load(std::memory_order_relaxed); }

 private:
  DecodedCache::Use UseOf(uint64_t sample) const { return {dataset_, sample, user_}; }

  DecodedCache& cache_;
  const TransformChain& transforms_;
  const size_t count_;
  const bool oriented_;
  const uid_t user_;
  const DecodedCache::Head name_;
  const std::shared_ptr<DatasetUses> dataset_;
  const std::shared_ptr<FeedUses> uses_;
  std::atomic<uint64_t> hits_{0};
  std::atomic<uint64_t> misses_{0};
};

}  // namespace pinfeed
