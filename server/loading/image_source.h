// SPDX-License-Identifier: Apache-2.0
// The pixels of an encoded image. In: a sample of a dataset. Out: its file, decoded, or what the cache has of
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "server/cache/cached_head.h"
#include "server/dataset/dataset.h"
#include "server/image/decode.h"
#include "server/transform/geometry_plan.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {

// An image file that the cache may keep decoded.
struct CacheableFile {
  uint64_t sample = 0;
  FileVersion version;
  std::vector<std::byte> encoded;
};

// Purpose: reads and decodes the images of one feed, by way of the cache if there is one. Threads: any, each
// with its own scratch. Errors: those of the dataset and the decoder; the same with and without the cache.
class ImageSource {
 public:
  // Purpose: the image of one sample, and buffers for the next. Threads: one at a time.
  struct Scratch {
    std::vector<std::byte> encoded;  // the file
    ImageDecoder decoder;
    std::optional<FileVersion> version;  // of the file, if the cache may keep what is made of it
    DecodedCache::Image cached;          // in place of `encoded`

    // Frees buffers larger than `bytes`, and gives the image back to the cache.
    void Trim(size_t bytes) {
      cached.reset();
      if (encoded.capacity() > bytes) std::vector<std::byte>().swap(encoded);
      decoder.Trim(bytes);
    }
  };

  // `field`: of the dataset, encoded images. `head`: null without the cache.
  ImageSource(size_t field, bool oriented, std::unique_ptr<CachedHead> head)
      : field_(field), oriented_(oriented), head_(std::move(head)) {}

  CachedHead* cached_head() const { return head_.get(); }

  // Has the storage read the file ahead, unless the cache has the image.
  Prefetched Prefetch(const Dataset& dataset, uint64_t id) const;
  // Reads the file of a sample, to decode it for the cache. Empty: the cache has the image, or it is left to
  // Read, as all errors are. Precondition: there is a cached_head().
  std::optional<CacheableFile> ReadToKeep(const Dataset& dataset, uint64_t id, uint64_t max_bytes) const;
  // Whether the cache has the image now. Same precondition.
  bool Keep(const CacheableFile& file, Scratch& scratch, GeometryScratch& geometry) const;
  // Reads the file, unless the cache has the image.
  Status Read(const Dataset& dataset, uint64_t id, Scratch& scratch) const;
  // Plans what is left to do to the image, and returns the size of the one that it is done to. `transforms`
  // are those of the feed. Precondition: Read succeeded.
  Result<ImageSize> Open(const TransformChain& transforms, const RandomKey& key, Scratch& scratch,
                         GeometryPlan& plan, GeometryScratch& geometry) const;
  // The pixels of `region` of that image. Valid until the scratch is used again. Precondition: Open
  // succeeded.
  static Result<ImageView> Decode(const Box& region, Scratch& scratch);

 private:
  const size_t field_;
  const bool oriented_;  // see ImageDecoder::Open
  const std::unique_ptr<CachedHead> head_;
};

}  // namespace pinfeed
