// SPDX-License-Identifier: Apache-2.0
// The pointwise end of an image's way when the trainer's GPU does it: what the client is told of it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/spec/feed_spec.h"
#include "common/spec/tensor_spec.h"

namespace pinfeed {

// What a sample's mark tells the client, besides the table.
enum class ImageMark : uint8_t {
  kPlain = 0,
  kMirrored = 1,
  kZero = 2,  // the sample was bad: its tensor is all zeros
};

// Purpose: how the uint8 pixels in a slot become the tensor that was asked for. A value. `table` has 256
// entries a channel: the bits, in the low bytes, of the element that each pixel value becomes (Pointwise).
struct DeferredPixelOps {
  uint32_t tensor = 0;           // of the slot: its pixels
  std::optional<uint32_t> mark;  // of the slot: an ImageMark a sample; unset: all are plain
  TensorSpec output;             // what it becomes
  uint32_t height = 0;
  uint32_t width = 0;
  uint32_t channels = 0;  // 1 or 3
  ImageLayout source_layout = ImageLayout::kHwc;
  ImageLayout output_layout = ImageLayout::kChw;
  std::vector<uint32_t> table;
};

}  // namespace pinfeed
