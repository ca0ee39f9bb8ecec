// SPDX-License-Identifier: Apache-2.0
// One output after the other, with the arithmetic of the device code, which decode_kernel_test compares with
// the daemon's.
#include "tests/support/stand_in_cuda/decode_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/stand_in_cuda/stand_in.h"

#define __device__
namespace pinfeed {
using std::max;
using std::min;
}  // namespace pinfeed
#include "client/kernels/resize_axis.cuh"
#include "client/kernels/source_pixels.cuh"

namespace pinfeed::stand_in {
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
          const Rgb pixel = PixelOf(image, image.x.first + columns.first + k, image.y.first + rows.first + j);
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

bool IsWritable(const void* memory, uint64_t bytes) {
  return bytes == 0 || IsReachable(AddressOf(memory), bytes, Rights::kReadWrite);
}

// Whether every row of the image's planes may be read.
bool PlanesAreReachable(const DecodedImage& image) {
  for (uint32_t p = 0; p < image.planes; ++p) {
    const auto height = static_cast<uint64_t>(p == 0 ? image.height : image.chroma_height);
    if (!IsReachable(AddressOf(image.plane[p]), height * image.pitch[p == 0 ? 0 : 1], Rights::kRead))
      return false;
  }
  return true;
}

}  // namespace

CUresult RunDecode(const DecodeImages& work) {
  const uint64_t bytes = uint64_t{work.height} * work.width * work.channels;
  if (!IsReachable(AddressOf(work.images), work.count * sizeof(DecodedImage), Rights::kRead))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  for (uint32_t i = 0; i < work.count; ++i) {
    const DecodedImage& image = work.images[i];
    if (!IsWritable(image.out, bytes) || !PlanesAreReachable(image)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (image.planes == 0) {
      std::memset(image.out, 0, bytes);
    } else if (image.interpolation == kInterpolateNearest) {
      Make<kInterpolateNearest>(work, image);
    } else if (image.interpolation == kInterpolateBilinear) {
      Make<kInterpolateBilinear>(work, image);
    } else if (image.interpolation == kInterpolateBicubic) {
      Make<kInterpolateBicubic>(work, image);
    } else {
      Make<kInterpolateLanczos>(work, image);
    }
  }
  return CUDA_SUCCESS;
}

// An image whose first plane ends with the poison was left out.
CUresult RunCheck(const DecodeImages& work) {
  for (uint32_t i = 0; i < work.count; ++i) {
    const DecodedImage& image = work.images[i];
    if (image.planes == 0 || image.width < 8) continue;
    if (!PlanesAreReachable(image)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    uint64_t word = 0;
    std::memcpy(&word, image.plane[0] + static_cast<uint64_t>(image.height - 1) * image.pitch[0],
                sizeof word);
    if (word == work.poison) work.unwritten[i] = 1;
  }
  return CUDA_SUCCESS;
}

CUresult RunFill(const FillWords& work) {
  if (!IsWritable(work.out, work.words * sizeof(uint64_t))) return CUDA_ERROR_ILLEGAL_ADDRESS;
  std::fill_n(work.out, work.words, work.value);
  return CUDA_SUCCESS;
}

}  // namespace pinfeed::stand_in
