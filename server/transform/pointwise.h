// SPDX-License-Identifier: Apache-2.0
// The last step on the host. In: RGB bytes. Out: the sample's tensor in its place: mirrored, cast,
// normalised, laid out, in one pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/spec/feed_spec.h"
#include "server/image/image.h"

namespace pinfeed {

// Purpose: the pointwise transforms of a feed, as what they make of each of the 256 values of each channel:
// exact, whatever the chain. The arithmetic is float32, rounded to the element type after each transform (to
// nearest, halves to even):
//   ToDtype(floating, scale): value / 255; without scale: value. ToDtype(uint8) of floating: cut to [0, 255],
//   towards zero; with scale, value * 255.999 first, as torchvision. Normalize: (value - mean) / std; of
//   uint8 it divides by 255 first and makes float32, so that Normalize needs no ToDtype before it.
// Threads: immutable.
class Pointwise {
 public:
  // Preconditions: CheckTransforms found no fault; `channels` is 1 or 3.
  Pointwise(std::span<const Transform> transforms, size_t channels, ImageLayout layout);

  DType dtype() const { return dtype_; }
  // 256 entries a channel: the bits of the element that each value becomes, in the low bytes.
  const std::vector<uint32_t>& table() const { return table_; }
  // Writes `channels` channels of the image (of an image widened to RGB, the first). Precondition: `out` is
  // exactly the tensor's size.
  void Run(const ImageView& image, bool flip, std::span<std::byte> out) const;

 private:
  using Values = std::array<float, 256>;
  void Apply(const Transform& transform, size_t channel, DType& dtype, Values& values) const;
  template <typename Element>
  void RunAs(const ImageView& image, bool flip, Element* out) const;

  const size_t channels_;
  const ImageLayout layout_;
  DType dtype_ = DType::kUint8;
  bool copies_ = false;          // unless it mirrors, the tensor's bytes are the image's
  std::vector<uint32_t> table_;  // 256 elements a channel, the bits of dtype_
};

}  // namespace pinfeed
