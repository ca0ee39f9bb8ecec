// SPDX-License-Identifier: Apache-2.0
// The pixels of a JPEG file on the device, in the colours that the resize gets.
#pragma once

#include "client/kernels/decode_images.h"

namespace pinfeed {

struct Rgb {
  int32_t r, g, b;
};

// Where the pixel (x, y) of the image lies.
__device__ inline const uint8_t* AddressOf(const DecodedImage& image, int32_t x, int32_t y) {
  return image.pixels + uint64_t(y) * image.pitch + 3 * x;
}

// `kGray`: DecodedImage::grayscale.
template <bool kGray>
__device__ inline Rgb ColourOf(const uint8_t* at) {
  if (!kGray) return {at[0], at[1], at[2]};
  // Pillow's conversion to "L".
  const int32_t grey = (at[0] * 19595 + at[1] * 38470 + at[2] * 7471 + (1 << 15)) >> 16;
  return {grey, grey, grey};
}

}  // namespace pinfeed
