// SPDX-License-Identifier: Apache-2.0
// Describes the pointwise operations that the client's GPU applies in place of the daemon.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/spec/feed_spec.h"
#include "common/spec/tensor_spec.h"

namespace pinfeed {

// What the client does with a sample besides applying the table.
enum class ImageMark : uint8_t {
  kPlain = 0,
  kMirrored = 1,
  kZero = 2,  // the sample is bad: its tensor is all zeros
};

// Purpose: describes how the uint8 pixels in a slot become the requested tensor. A value. `table` has 256
// entries per channel: the bits, in the low bytes, of the element that each pixel value becomes (Pointwise).
struct DeferredPixelOps {
  uint32_t tensor = 0;           // index of the slot's tensor with the pixels
  std::optional<uint32_t> mark;  // index of the slot's tensor with an ImageMark per sample; unset: all kPlain
  // Set: `tensor` is packed bytes, of which the client makes the pixels by the ImagePlan that the tensor with
  // this index has per sample.
  std::optional<uint32_t> plan = std::nullopt;
  TensorSpec output;  // the resulting tensor
  uint32_t height = 0;
  uint32_t width = 0;
  uint32_t channels = 0;  // 1 or 3
  ImageLayout source_layout = ImageLayout::kHwc;
  ImageLayout output_layout = ImageLayout::kChw;
  std::vector<uint32_t> table;
};

}  // namespace pinfeed
