// SPDX-License-Identifier: Apache-2.0
// One batch of a feed whose images this process decodes: how it lies in the slot and in device memory. In: an
// offer and a slot, which the daemon may write to at any time. Out: checked copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/src/decode/decode_engine.h"
#include "client/src/link/offer.h"
#include "common/base/result.h"
#include "common/spec/tensor_spec.h"

namespace pinfeed {

// Purpose: the two layouts of one feed, and what is read from a slot. Owns the offer. Threads: immutable.
// Errors: kInternal: what the daemon wrote is impossible.
class DecodedLayout {
 public:
  // Precondition: offer.Decoded() is not null.
  explicit DecodedLayout(FeedOffer offer);

  const FeedOffer& offer() const { return offer_; }
  const OfferedImage& image() const { return *offer_.Decoded()->image; }
  // Of a batch in device memory. / Offset of each tensor there; the images are pixels, their plans are
  // absent.
  uint64_t bytes() const { return bytes_; }
  const std::vector<uint64_t>& offsets() const { return offsets_; }
  // The most bytes of one encoded image.
  uint64_t image_bytes() const { return offer_.layout.tensors[image_].sample_bytes; }

  // Of one sample: its plan, and its bytes in the slot.
  struct Image {
    ImagePlan plan;
    std::span<const std::byte> bytes;
  };
  Result<Image> ImageOf(const std::byte* slot, uint32_t sample) const;
  // Appends what copies all tensors but the image of a batch of `samples` to device memory at `to`.
  Status AddCopies(const std::byte* slot, uint32_t samples, std::byte* to,
                   std::vector<DecodeWorker::Copy>& copies) const;
  // Appends what zeroes the tensors of a sample whose image cannot be decoded, as the daemon does with a bad
  // sample: all but the sample's id.
  void AddZeroes(uint32_t sample, std::byte* to, std::vector<DecodeWorker::Copy>& copies) const;

 private:
  // The rows of a packed tensor's sample, checked.
  Result<RowExtent> ExtentOf(const std::byte* slot, const TensorPlace& packed, uint32_t sample) const;
  bool IsCopied(size_t tensor) const;

  const FeedOffer offer_;
  const size_t image_;  // tensor
  std::vector<uint64_t> offsets_;
  uint64_t bytes_ = 0;
};

}  // namespace pinfeed
