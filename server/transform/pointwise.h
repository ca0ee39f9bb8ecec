// SPDX-License-Identifier: Apache-2.0
// The last step on the host. In: RGB bytes. Out: the sample's tensor in its place: mirrored, cast,
// normalised, laid out, in one pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/spec/feed_spec.h"
#include "server/image/image.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {

// Purpose: the pointwise transforms of a feed, as what they make of each of the 256 values of each channel:
// exact, whatever the chain. Threads: immutable.
class Pointwise {
 public:
  // Preconditions: Follow found no fault; `channels` is what it came to, 1 or 3.
  Pointwise(const TransformChain& transforms, size_t channels, ImageLayout layout);

  DType dtype() const { return dtype_; }
  // 256 entries a channel: the bits of the element that each value becomes, in the low bytes.
  const std::vector<uint32_t>& table() const { return table_; }
  // Writes `channels` channels of the image (of an image widened to RGB, the first). Precondition: `out` is
  // exactly the tensor's size.
  void Run(const ImageView& image, bool flip, std::span<std::byte> out) const;

 private:
  template <typename Element>
  void RunAs(const ImageView& image, bool flip, Element* out) const;

  const size_t channels_;
  const ImageLayout layout_;
  DType dtype_ = DType::kUint8;
  bool copies_ = false;          // unless it mirrors, the tensor's bytes are the image's
  std::vector<uint32_t> table_;  // 256 elements a channel, the bits of dtype_
};

}  // namespace pinfeed
