// SPDX-License-Identifier: Apache-2.0
// Whether the JPEG engines wrote an image. In: the places of images. Out: poison in some bytes of each,
// before the engines; which images still have it, behind them.
#pragma once

#include "client/kernels/source_pixels.cuh"

namespace pinfeed {

// Calls visit(bytes, begin, end) for the block's image and this thread's share of its places, of up to 8
// bytes each: two in each row of blocks in the region, one at its end, and one that differs from row to row.
// The engine decodes blocks in order, so that an image which it has left early has no last blocks.
template <typename Visit>
__device__ inline void ForPlaces(const DecodeImages& work, const Visit& visit) {
  constexpr int32_t kBlock = 8;
  const DecodedImage& image = work.images[blockIdx.x];
  if (image.pixels == nullptr) return;
  const int32_t begin = 3 * image.x.first;
  const int32_t end = begin + 3 * image.x.region;
  const int32_t last = max(end - kBlock, begin);
  const int32_t top = image.y.first;
  const int32_t bottom = top + image.y.region - 1;
  for (int32_t i = top / kBlock + threadIdx.x; i <= bottom / kBlock; i += kDecodeThreads) {
    const int32_t y = i * kBlock + int32_t(work.poison >> (i & 31) & (kBlock - 1));
    const uint8_t* const row = AddressOf(image, 0, min(max(y, top), bottom));
    const int32_t somewhere =
        begin + int32_t((i * 0x9E3779B1u ^ uint32_t(work.poison)) % uint32_t(last - begin + 1));
    visit(row, somewhere, min(somewhere + kBlock, end));
    visit(row, last, end);
  }
}

__device__ inline uint8_t PoisonAt(const DecodeImages& work, int32_t byte) {
  return uint8_t(work.poison >> (byte % 8 * 8));
}

__device__ inline void Poison(const DecodeImages& work) {
  ForPlaces(work, [&](const uint8_t* row, int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; ++i) const_cast<uint8_t*>(row)[i] = PoisonAt(work, i);
  });
}

__device__ inline void CheckWritten(const DecodeImages& work) {
  ForPlaces(work, [&](const uint8_t* row, int32_t begin, int32_t end) {
    bool same = true;
    for (int32_t i = begin; i < end; ++i) same = same && row[i] == PoisonAt(work, i);
    if (same) work.unwritten[blockIdx.x] = 1;
  });
}

}  // namespace pinfeed
