// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode/decoded_layout.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/src/memory/session_memory.h"
#include "common/base/round_up.h"

namespace pinfeed {
namespace {

// ImageMark::kZero of the daemon: the image's elements are zeros.
constexpr std::byte kZeroMark{2};

}  // namespace

DecodedLayout::DecodedLayout(FeedOffer offer) : offer_(std::move(offer)), image_(offer_.Decoded()->tensor) {
  const std::vector<TensorPlace>& tensors = offer_.layout.tensors;
  for (size_t t = 0; t < tensors.size(); ++t) {
    offsets_.push_back(bytes_);
    if (t != image_ && !IsCopied(t)) continue;
    // Cannot overflow: CheckOffer has bounded the slot, of which no tensor takes less.
    const uint64_t sample = t == image_ ? image().PixelBytes() : tensors[t].sample_bytes;
    bytes_ += RoundUp(sample * offer_.layout.batch_size, kTensorAlignment);
  }
}

bool DecodedLayout::IsCopied(size_t tensor) const {
  return tensor != image_ && tensor != image().plan && tensor != offer_.layout.tensors[image_].spec.extents;
}

Result<RowExtent> DecodedLayout::ExtentOf(const std::byte* slot, const TensorPlace& packed,
                                          uint32_t sample) const {
  RowExtent extent;
  std::memcpy(&extent, slot + offer_.layout.tensors[*packed.spec.extents].offset + sample * sizeof extent,
              sizeof extent);
  const uint64_t most = static_cast<uint64_t>(packed.spec.shape[0]);
  const uint64_t rows = offer_.layout.batch_size * most;
  const auto first = static_cast<uint64_t>(extent.first);
  const auto count = static_cast<uint64_t>(extent.count);
  if (first > rows || count > rows - first || count > most)
    return BrokenSession("the rows of tensor '" + packed.spec.name + "' lie outside of it");
  return extent;
}

Result<DecodedLayout::Image> DecodedLayout::ImageOf(const std::byte* slot, uint32_t sample) const {
  const TensorPlace& packed = offer_.layout.tensors[image_];
  Image found;
  std::memcpy(&found.plan, slot + offer_.layout.tensors[*image().plan].offset + sample * sizeof(ImagePlan),
              sizeof(ImagePlan));
  ASSIGN_OR_RETURN(const RowExtent extent, ExtentOf(slot, packed, sample));
  found.bytes = {slot + packed.offset + extent.first, static_cast<size_t>(extent.count)};
  const auto kind = static_cast<ImagePlanKind>(found.plan.kind);
  const bool fits = kind == ImagePlanKind::kZero     ? found.bytes.empty()
                    : kind == ImagePlanKind::kPixels ? found.bytes.size() == image().PixelBytes()
                                                     : kind == ImagePlanKind::kJpeg;
  if (!fits) return BrokenSession("the plan of an image does not fit its bytes");
  return found;
}

Status DecodedLayout::AddCopies(const std::byte* slot, uint32_t samples, std::byte* to,
                                std::vector<DecodeWorker::Copy>& copies) const {
  const std::vector<TensorPlace>& tensors = offer_.layout.tensors;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorPlace& tensor = tensors[t];
    if (!IsCopied(t)) continue;
    uint64_t bytes = tensor.sample_bytes * samples;
    if (tensor.spec.packed()) {
      bytes = 0;  // up to the last row
      for (uint32_t i = 0; i < samples; ++i) {
        ASSIGN_OR_RETURN(const RowExtent extent, ExtentOf(slot, tensor, i));
        const auto end = static_cast<uint64_t>(extent.first + extent.count);
        bytes = std::max(bytes, end * tensor.spec.RowBytes());
      }
    }
    if (bytes > 0) copies.push_back({slot + tensor.offset, to + offsets_[t], bytes});
  }
  return OkStatus();
}

void DecodedLayout::AddZeroes(uint32_t sample, std::byte* to, std::vector<DecodeWorker::Copy>& copies) const {
  const std::vector<TensorPlace>& tensors = offer_.layout.tensors;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (!IsCopied(t) || t == offer_.sample_id_tensor || tensors[t].spec.packed()) continue;
    const std::byte* const from = t == image().mark ? &kZeroMark : nullptr;
    copies.push_back({from, to + offsets_[t] + sample * tensors[t].sample_bytes, tensors[t].sample_bytes});
  }
}

}  // namespace pinfeed
