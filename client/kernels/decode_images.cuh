// SPDX-License-Identifier: Apache-2.0
// The kernel behind the JPEG engines. In: the pixels of files. Out: the feed's uint8 pixels: crop, resize,
// flip. A block makes one tile of one image: it resizes strips of source rows to the tile's columns in shared
// memory, rounded to 8 bits like the daemon, and adds up each output from them.
#pragma once

#include "client/kernels/resize_axis.cuh"
#include "client/kernels/source_pixels.cuh"

namespace pinfeed {

constexpr int32_t kStripRows = 32;
constexpr int32_t kTileRowsPerThread = kDecodeTileWidth * kDecodeTileHeight / kDecodeThreads;
constexpr int32_t kRowsAtOnce = kDecodeThreads / kDecodeTileWidth;  // a warp has a row
constexpr int32_t kStripRowsPerThread = kStripRows / kRowsAtOnce;

__device__ inline int32_t Rounded(float value) {
  return ClampByte(__float2int_rd(value + 0.5f));
}

__device__ inline void WritePixel(const DecodeImages& work, const DecodedImage& image, int32_t x, int32_t y,
                                  int32_t r, int32_t g, int32_t b) {
  const uint32_t row = image.upside_down != 0 ? work.height - 1 - y : y;
  uint8_t* const out = image.out + (uint64_t(row) * work.width + x) * work.channels;
  out[0] = uint8_t(r);
  if (work.channels == 1) return;
  out[1] = uint8_t(g);
  out[2] = uint8_t(b);
}

template <uint32_t kInterpolation>
__device__ void MakeTile(const DecodeImages& work, const DecodedImage& image, int32_t left, int32_t top) {
  __shared__ Taps columns[kDecodeTileWidth];
  __shared__ Taps rows[kDecodeTileHeight];
  __shared__ uchar4 strip[kStripRows][kDecodeTileWidth];
  const int32_t width = min(kDecodeTileWidth, work.width - left);
  const int32_t height = min(kDecodeTileHeight, work.height - top);
  const int32_t thread = threadIdx.x;
  if (thread < width) columns[thread] = TapsOf<kInterpolation>(image.x, image.x.out + left + thread);
  const int32_t of_row = thread - int32_t(kDecodeTileWidth);
  if (of_row >= 0 && of_row < height)
    rows[of_row] = TapsOf<kInterpolation>(image.y, image.y.out + top + of_row);
  __syncthreads();

  // The rows of the region that the tile needs.
  const int32_t begin = rows[0].first;
  const int32_t end = rows[height - 1].first + rows[height - 1].count;
  const int32_t column = thread % kDecodeTileWidth;
  const int32_t first_row = thread / kDecodeTileWidth;
  float sums[kTileRowsPerThread][3] = {};
  for (int32_t strip_begin = begin; strip_begin < end; strip_begin += kStripRows) {
    const int32_t strip_rows = min(kStripRows, end - strip_begin);
    if (column < width) {
      // A weight serves all rows of the thread, whose loads do not wait for each other.
      const Taps taps = columns[column];
      const uint8_t* at[kStripRowsPerThread];
      float across[kStripRowsPerThread][3] = {};
#pragma unroll
      for (int32_t i = 0; i < kStripRowsPerThread; ++i) {
        const int32_t row = min(first_row + i * kRowsAtOnce, strip_rows - 1);
        at[i] = AddressOf(image, image.x.first + taps.first, image.y.first + strip_begin + row);
      }
      for (int32_t k = 0; k < taps.count; ++k) {
        const float weight = Weight<kInterpolation>(taps, k);
#pragma unroll
        for (int32_t i = 0; i < kStripRowsPerThread; ++i) {
          const Rgb pixel = ColourOf(image, at[i] + 3 * k);
          across[i][0] += weight * pixel.r;
          across[i][1] += weight * pixel.g;
          across[i][2] += weight * pixel.b;
        }
      }
#pragma unroll
      for (int32_t i = 0; i < kStripRowsPerThread; ++i)
        strip[first_row + i * kRowsAtOnce][column] =
            make_uchar4(Rounded(across[i][0]), Rounded(across[i][1]), Rounded(across[i][2]), 0);
    }
    __syncthreads();
#pragma unroll
    for (int32_t i = 0; i < kTileRowsPerThread; ++i) {
      const int32_t y = first_row + i * kRowsAtOnce;
      if (column >= width || y >= height) continue;
      const Taps taps = rows[y];
      const int32_t from = max(taps.first, strip_begin);
      const int32_t to = min(taps.first + taps.count, strip_begin + strip_rows);
      for (int32_t row = from; row < to; ++row) {
        const float weight = Weight<kInterpolation>(taps, row - taps.first);
        const uchar4 pixel = strip[row - strip_begin][column];
        sums[i][0] += weight * pixel.x;
        sums[i][1] += weight * pixel.y;
        sums[i][2] += weight * pixel.z;
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int32_t i = 0; i < kTileRowsPerThread; ++i) {
    const int32_t y = first_row + i * kRowsAtOnce;
    if (column < width && y < height)
      WritePixel(work, image, left + column, top + y, Rounded(sums[i][0]), Rounded(sums[i][1]),
                 Rounded(sums[i][2]));
  }
}

__device__ inline void WriteZeros(const DecodeImages& work, const DecodedImage& image, int32_t left,
                                  int32_t top) {
  for (uint32_t i = threadIdx.x; i < kDecodeTileWidth * kDecodeTileHeight; i += kDecodeThreads) {
    const int32_t x = left + i % kDecodeTileWidth;
    const int32_t y = top + i / kDecodeTileWidth;
    if (x < int32_t(work.width) && y < int32_t(work.height)) WritePixel(work, image, x, y, 0, 0, 0);
  }
}

// Whether the 8 bytes of a row from `begin` on, as far as they lie before `end`, still hold the poison.
__device__ inline bool IsPoisoned(const uint8_t* row, int32_t begin, int32_t end, uint64_t poison) {
  bool same = true;
  for (int32_t i = begin; i < min(begin + 8, end); ++i)
    same = same && row[i] == uint8_t(poison >> (i % 8 * 8));
  return same;
}

// Looks at two places of each row of blocks in the region: at its end, and at one that differs from row to
// row. The engine decodes blocks in order, so that an image which it has left early has no last blocks.
__device__ inline void CheckWritten(const DecodeImages& work) {
  constexpr int32_t kBlock = 8;
  const DecodedImage& image = work.images[blockIdx.x];
  if (image.pixels == nullptr) return;
  bool poisoned = false;
  const int32_t begin = 3 * image.x.first;
  const int32_t end = begin + 3 * image.x.region;
  const int32_t last = max(end - kBlock, begin);
  const int32_t top = image.y.first;
  const int32_t bottom = top + image.y.region - 1;
  for (int32_t i = top / kBlock + threadIdx.x; i <= bottom / kBlock; i += kDecodeThreads) {
    const int32_t y = i * kBlock + int32_t(work.poison >> (i & 31) & (kBlock - 1));
    const uint8_t* const row = AddressOf(image, 0, min(max(y, top), bottom));
    const int32_t somewhere = int32_t((i * 0x9E3779B1u ^ uint32_t(work.poison)) % uint32_t(last - begin + 1));
    poisoned |= IsPoisoned(row, begin + somewhere, end, work.poison);
    poisoned |= IsPoisoned(row, last, end, work.poison);
  }
  if (poisoned) work.unwritten[blockIdx.x] = 1;
}

__device__ inline void Decode(const DecodeImages& work) {
  __shared__ DecodedImage image;
  static_assert(sizeof(DecodedImage) / 4 <= kDecodeThreads, "one word a thread");
  if (threadIdx.x < sizeof image / 4)
    reinterpret_cast<uint32_t*>(&image)[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(&work.images[blockIdx.y])[threadIdx.x];
  __syncthreads();
  const uint32_t across = (work.width + kDecodeTileWidth - 1) / kDecodeTileWidth;
  const int32_t left = int32_t(blockIdx.x % across * kDecodeTileWidth);
  const int32_t top = int32_t(blockIdx.x / across * kDecodeTileHeight);
  if (image.pixels == nullptr) {
    WriteZeros(work, image, left, top);
  } else if (image.interpolation == kInterpolateNearest) {
    MakeTile<kInterpolateNearest>(work, image, left, top);
  } else if (image.interpolation == kInterpolateBilinear) {
    MakeTile<kInterpolateBilinear>(work, image, left, top);
  } else if (image.interpolation == kInterpolateBicubic) {
    MakeTile<kInterpolateBicubic>(work, image, left, top);
  } else {
    MakeTile<kInterpolateLanczos>(work, image, left, top);
  }
}

}  // namespace pinfeed

extern "C" __global__ void __launch_bounds__(pinfeed::kDecodeThreads, 4)
    DecodeImages(const __grid_constant__ pinfeed::DecodeImages work) {
  pinfeed::Decode(work);
}

extern "C" __global__ void __launch_bounds__(pinfeed::kDecodeThreads, 4)
    CheckPixels(const __grid_constant__ pinfeed::DecodeImages work) {
  pinfeed::CheckWritten(work);
}

extern "C" __global__ void __launch_bounds__(pinfeed::kDecodeThreads, 4)
    FillWords(const __grid_constant__ pinfeed::FillWords work) {
  ulonglong2* const out = reinterpret_cast<ulonglong2*>(work.out);
  for (uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x; i < work.words / 2;
       i += uint64_t(gridDim.x) * blockDim.x)
    out[i] = make_ulonglong2(work.value, work.value);
}
