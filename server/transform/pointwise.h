// SPDX-License-Identifier: Apache-2.0
// The last transforms on the host. In: RGB bytes. Out: the sample's tensor: flipped, cast, normalised and
// laid out in one pass, and written directly to its slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/spec/feed_spec.h"
#include "server/image/image.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {

// Purpose: the pointwise transforms of a feed as a lookup table of the 256 values of each channel, which is
// exact for any chain. Threads: immutable.
class Pointwise {
 public:
  // Preconditions: TransformChain::Follow found no fault; `channels` is its result, 1 or 3.
  Pointwise(const TransformChain& transforms, size_t channels, ImageLayout layout);

  DType dtype() const { return dtype_; }
  // For each channel and each of the 256 pixel values, the bits of the resulting element, in the low bytes.
  const std::vector<uint32_t>& table() const { return table_; }
  // Writes the first `channels` channels of the image. Precondition: `out` has exactly the tensor's size.
  void Run(const ImageView& image, bool flip, std::span<std::byte> out) const;

 private:
  template <typename Element>
  void RunAs(const ImageView& image, bool flip, Element* out) const;

  const size_t channels_;
  const ImageLayout layout_;
  DType dtype_ = DType::kUint8;
  bool copies_ = false;  // the tensor has the same bytes as the image, so Run copies them unless it flips
  std::vector<uint32_t> table_;  // see table()
};

}  // namespace pinfeed
