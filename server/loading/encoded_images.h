// SPDX-License-Identifier: Apache-2.0
// Images that a producer hands over as files. In: the memory of a batch that its producer has filled, with a
// table of the images. Out: their pixels, decoded and transformed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/spec/feed_spec.h"
#include "server/loading/sample_loader.h"

namespace pinfeed {

// Of a feed with encoded_images, between the dataset's fields and the samples' ids: the pixels of all images
// of a batch, and why they cannot be used (ImageError).
inline constexpr std::string_view kImagesTensor = "images";
inline constexpr std::string_view kImageErrorTensor = "image_error";
// The tensor image_error: a code (common/base/status.h; 0: all images are good), and a text that zeros end.
inline constexpr size_t kImageErrorBytes = 1024;
// Where a batch's first field has the offset of the table (uint64, from the field's start; 0: no images).
inline constexpr size_t kImageTableAt = 48;

// One image, as its producer describes it: a row of the table, little-endian. The first row only counts: its
// `sample` is the number of rows behind it.
struct EncodedImageRow {
  enum Kind : uint32_t { kFile = 1, kPath = 2 };

  uint64_t sample = 0;  // its index; with kNoIndex: what else random numbers may depend on
  uint32_t draw = 0;    // tells the images of one sample apart: each gets random numbers of its own
  uint32_t kind = 0;
  uint64_t offset = 0;  // of the file or its path, from the field's start
  uint64_t length = 0;
};
static_assert(sizeof(EncodedImageRow) == 32);
inline constexpr uint64_t kNoIndex = uint64_t{1} << 63;

// Purpose: loads the images of one feed's batches. Owns: the compiled transforms. Immutable. Threads: any,
// each with its own scratch. Errors: a table or an image that cannot be used is a Status that says which.
// Invariant: the producer may write to its memory at any time, so all of it is copied before it is looked at.
class EncodedImages {
 public:
  // Checks the transforms like SampleLoader::Create. `roots`: below which images may be named by their path.
  // Precondition: spec.encoded_images != 0.
  static Result<std::unique_ptr<const EncodedImages>> Create(const FeedSpec& spec,
                                                             std::vector<std::string> roots);

  // The tensor of all images of a batch.
  const TensorSpec& tensor() const { return tensor_; }
  uint64_t image_bytes() const { return image_bytes_; }

  // Returns the rows of the table in `field`, a batch's first field. Each lies within the field.
  // kOutOfRange for more images than the feed has places. Precondition: at least kImageTableAt + 8
  // bytes.
  Result<std::vector<EncodedImageRow>> ReadTable(std::span<const std::byte> field) const;
  // Writes the pixels of an image to `place`. The error names the sample, and the path if there is one.
  // Preconditions: ReadTable returned the row for this field; place has image_bytes().
  Status Load(const EncodedImageRow& image, std::span<const std::byte> field, std::span<std::byte> place,
              SampleScratch& scratch, SampleTimes& times) const;

 private:
  class Files;
  class File;
  EncodedImages(uint32_t most, std::vector<std::string> roots, std::unique_ptr<const SampleLoader> loader,
                TensorSpec tensor, uint64_t image_bytes);

  const uint32_t most_;  // images of a batch
  const std::vector<std::string> roots_;
  const std::unique_ptr<const SampleLoader> loader_;
  const TensorSpec tensor_;
  const uint64_t image_bytes_;
};

}  // namespace pinfeed
