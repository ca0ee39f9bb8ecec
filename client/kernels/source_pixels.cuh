// SPDX-License-Identifier: Apache-2.0
// The pixels of a JPEG file on the device. In: its planes. Out: RGB, by the same integer arithmetic as
// libjpeg-turbo's: ITU-R BT.601 in 16-bit fixed point, and chroma that is interpolated with weights of 3/4
// and 1/4 ("fancy upsampling").
#pragma once

#include "client/kernels/decode_images.h"

namespace pinfeed {

struct Rgb {
  int32_t r, g, b;
};

__device__ inline int32_t ClampByte(int32_t value) {
  return min(max(value, 0), 255);
}

// A sample of a chroma plane for the pixel (x, y) of the image.
__device__ inline int32_t Chroma(const DecodedImage& image, const uint8_t* plane, int32_t x, int32_t y) {
  const uint32_t pitch = image.pitch[1];
  if (image.h_shift == 0) return plane[uint64_t(y) * pitch + x];
  const int32_t column = x >> 1;
  const int32_t row = image.v_shift == 0 ? y : y >> 1;
  const uint8_t* const near = plane + uint64_t(row) * pitch;
  if (image.chroma_width <= 2) return near[column];  // too narrow to interpolate, libjpeg-turbo finds
  const int32_t odd = x & 1;
  const int32_t beside = min(max(odd ? column + 1 : column - 1, 0), image.chroma_width - 1);
  if (image.v_shift == 0) return (3 * near[column] + near[beside] + 1 + odd) >> 2;
  const int32_t other = min(max(y & 1 ? row + 1 : row - 1, 0), image.chroma_height - 1);
  const uint8_t* const far = plane + uint64_t(other) * pitch;
  const int32_t here = 3 * near[column] + far[column];
  return (3 * here + 3 * near[beside] + far[beside] + 8 - odd) >> 4;
}

// The pixel (x, y) of the image in colour.
__device__ inline Rgb ColourOf(const DecodedImage& image, int32_t x, int32_t y) {
  const uint8_t* const row = image.plane[0] + uint64_t(y) * image.pitch[0];
  if (image.interleaved != 0) return {row[3 * x], row[3 * x + 1], row[3 * x + 2]};
  const int32_t luma = row[x];
  if (image.planes == 1) return {luma, luma, luma};
  const int32_t cb = Chroma(image, image.plane[1], x, y) - 128;
  const int32_t cr = Chroma(image, image.plane[2], x, y) - 128;
  constexpr int32_t kHalf = 1 << 15;
  return {ClampByte(luma + ((91881 * cr + kHalf) >> 16)),
          ClampByte(luma + ((-22554 * cb - 46802 * cr + kHalf) >> 16)),
          ClampByte(luma + ((116130 * cb + kHalf) >> 16))};
}

__device__ inline Rgb PixelOf(const DecodedImage& image, int32_t x, int32_t y) {
  Rgb pixel = ColourOf(image, x, y);
  if (image.grayscale != 0) {
    // Pillow's conversion to "L".
    pixel.r = pixel.g = pixel.b = (pixel.r * 19595 + pixel.g * 38470 + pixel.b * 7471 + (1 << 15)) >> 16;
  }
  return pixel;
}

}  // namespace pinfeed
