// SPDX-License-Identifier: Apache-2.0
// What the kernel behind the JPEG engines makes, one output after the other. Include resize_axis.cuh and
// source_pixels.cuh before: what they need of nvcc differs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "client/kernels/decode_images.h"

namespace pinfeed {
namespace {

uint8_t RoundedByte(float value) {
  return static_cast<uint8_t>(std::clamp(std::floor(value + 0.5F), 0.0F, 255.0F));
}

template <uint32_t kInterpolation>
void Make(const DecodeImages& work, const DecodedImage& image) {
  for (uint32_t y = 0; y < work.height; ++y) {
    const Taps rows = TapsOf<kInterpolation>(
        image.y, image.y.out + static_cast<int32_t>(image.upside_down != 0 ? work.height - 1 - y : y));
    for (uint32_t x = 0; x < work.width; ++x) {
      const Taps columns = TapsOf<kInterpolation>(image.x, image.x.out + static_cast<int32_t>(x));
      float sums[3] = {};
      for (int32_t j = 0; j < rows.count; ++j) {
        float line[3] = {};
        for (int32_t k = 0; k < columns.count; ++k) {
          const uint8_t* const at =
              AddressOf(image, image.x.first + columns.first + k, image.y.first + rows.first + j);
          const Rgb pixel = image.grayscale != 0 ? ColourOf<true>(at) : ColourOf<false>(at);
          const float weight = Weight<kInterpolation>(columns, k);
          line[0] += weight * static_cast<float>(pixel.r);
          line[1] += weight * static_cast<float>(pixel.g);
          line[2] += weight * static_cast<float>(pixel.b);
        }
        for (int c = 0; c < 3; ++c) sums[c] += Weight<kInterpolation>(rows, j) * RoundedByte(line[c]);
      }
      uint8_t* const out = image.out + (uint64_t{y} * work.width + x) * work.channels;
      for (uint32_t c = 0; c < work.channels; ++c) out[c] = RoundedByte(sums[c]);
    }
  }
}

void MakeImage(const DecodeImages& work, const DecodedImage& image) {
  if (image.interpolation == kInterpolateNearest) return Make<kInterpolateNearest>(work, image);
  if (image.interpolation == kInterpolateBilinear) return Make<kInterpolateBilinear>(work, image);
  if (image.interpolation == kInterpolateBicubic) return Make<kInterpolateBicubic>(work, image);
  Make<kInterpolateLanczos>(work, image);
}

}  // namespace
}  // namespace pinfeed
