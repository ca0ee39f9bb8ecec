// SPDX-License-Identifier: Apache-2.0
#include "server/cache/cached_head.h"

#include <algorithm>
#include <string>

namespace pinfeed {
namespace {

// An image that the head makes larger than this many times is not kept: a random crop behind it computes only
// the part that it needs.
constexpr int64_t kMaxGrowth = 4;
constexpr int64_t kAlwaysSmallPixels = 512 * 512;

int64_t Area(ImageSize size) {
  return int64_t{size.width} * size.height;
}

}  // namespace

CachedHead::CachedHead(const CacheAccess& access, const FeedSpec& spec, const DatasetInfo& dataset,
                       const TransformChain& transforms)
    : cache_(*access.cache),
      transforms_(transforms),
      count_(transforms.fixed()),
      oriented_(!spec.ignore_exif_orientation),
      user_(access.user),
      name_(std::make_shared<const std::string>((oriented_ ? "as displayed; " : "as stored; ") +
                                                transforms.GeometryText(count_))),
      // The head, since images of another one are others. The number of samples too: a fingerprint can be
      // forged, and positions are those of so many samples.
      dataset_(cache_.UsesOf(*name_ + '\n' + dataset.format + '\n' + dataset.fingerprint + '\n' +
                             std::to_string(dataset.samples) + '\n' + dataset.path)),
      uses_(std::make_shared<FeedUses>(spec, dataset.samples)) {
  dataset_->Add(uses_);
}

CachedHead::~CachedHead() {
  dataset_->Remove(*uses_);
}

DecodedCache::Image CachedHead::Find(const FileVersion& file, uint64_t sample) {
  DecodedCache::Image image = cache_.Find(file, name_, UseOf(sample));
  (image == nullptr ? misses_ : hits_).fetch_add(1, std::memory_order_relaxed);
  return image;
}

DecodedCache::Image CachedHead::Make(const FileVersion& file, uint64_t sample,
                                     std::span<const std::byte> encoded, ImageSize size,
                                     ImageDecoder& decoder, GeometryScratch& scratch,
                                     DecodedCache::Evict evict) const {
  GeometryPlan plan;
  // Nothing of the head varies, so the key is not used.
  if (!transforms_.Plan({}, size, plan, 0, count_).ok()) return nullptr;
  const ImageSize made{plan.steps.back().width, plan.steps.back().height};
  if (Area(made) > std::max(kMaxGrowth * Area(size), kAlwaysSmallPixels)) return nullptr;
  const std::shared_ptr<CachedImage> image = cache_.MakeRoom(file, made, UseOf(sample), evict);
  if (image == nullptr) return nullptr;
  const auto run = [&]() -> Result<ImageView> {
    ASSIGN_OR_RETURN(const ImageView source, decoder.Decode(SourceRegion(plan, size)));
    return RunGeometry(plan, size, source, scratch);
  };
  const Result<ImageView> result = run();
  if (!result.ok()) {
    // The caller decodes again, so that it finds what it would find without the cache.
    static_cast<void>(decoder.Open(encoded, oriented_).ok());
    return nullptr;
  }
  CopyPixels(*result, image->pixels());
  image->set_source(size);
  cache_.Add(file, name_, UseOf(sample), image);
  return image;
}

bool CachedHead::MakeAhead(const FileVersion& file, uint64_t sample, std::span<const std::byte> encoded,
                           ImageSize size, ImageDecoder& decoder, GeometryScratch& scratch) const {
  if (Make(file, sample, encoded, size, decoder, scratch, DecodedCache::Evict::kUnused) == nullptr)
    return false;
  cache_.CountMadeAhead();
  return true;
}

}  // namespace pinfeed
