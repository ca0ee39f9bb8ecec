// SPDX-License-Identifier: Apache-2.0
// The kernel behind the JPEG engines. In: the pixels of files. Out: the feed's uint8 pixels: crop, resize,
// flip. A block makes one tile of one image: it resizes strips of source rows to the tile's columns in shared
// memory, rounded to 8 bits like the daemon, and adds up each output from them. A warp has a row at a time.
#pragma once

#include "client/kernels/pixel_poison.cuh"
#include "client/kernels/resize_axis.cuh"
#include "client/kernels/source_pixels.cuh"

namespace pinfeed {

constexpr int32_t kWarpRows = kDecodeThreads / kDecodeTileWidth;  // that a block works on at once
constexpr int32_t kStripRows = 48;                                // what most photographs need for a tile
constexpr int32_t kTableTaps = 16;  // an axis with more computes the weights of the others each time

struct TileMemory {
  Taps columns[kDecodeTileWidth];
  Taps rows[kDecodeTileHeight];
  float column_weights[kTableTaps][kDecodeTileWidth];
  float row_weights[kTableTaps][kDecodeTileHeight];
  float4 strip[kStripRows][kDecodeTileWidth];        // red, green, blue; whole numbers
  float4 sums[kDecodeTileHeight][kDecodeTileWidth];  // of outputs that go on in the next strip
};

__device__ inline void WritePixel(const DecodeImages& work, const DecodedImage& image, int32_t x, int32_t y,
                                  uint8_t r, uint8_t g, uint8_t b) {
  const uint32_t row = image.upside_down != 0 ? work.height - 1 - y : y;
  uint8_t* const out = image.out + (uint64_t(row) * work.width + x) * work.channels;
  out[0] = r;
  if (work.channels == 1) return;
  out[1] = g;
  out[2] = b;
}

// Weighted colours, from the half that rounding adds on.
struct Sums {
  float r = 0.5f, g = 0.5f, b = 0.5f;

  __device__ void Add(float weight, float red, float green, float blue) {
    r += weight * red;
    g += weight * green;
    b += weight * blue;
  }
};

constexpr float kWholeFloats = 8388608.0f;  // 2^23: from here on, neighbouring floats differ by 1

// Returns kWholeFloats plus the byte that the sum is rounded to, so these are its last bits.
template <uint32_t kInterpolation>
__device__ inline float Rounded(float sum) {
  // Weights below 0 lead out of the range of a byte.
  if (HasNegativeWeights(kInterpolation)) sum = fminf(fmaxf(sum, 0.0f), 255.0f);
  return __fadd_rd(sum, kWholeFloats);
}

// Calls add(weight) for the taps [begin, end). `table` has the weights of the first kTableTaps.
template <uint32_t kInterpolation, typename Add>
__device__ inline void ForTaps(const Taps& taps, const float* table, int32_t stride, int32_t begin,
                               int32_t end, const Add& add) {
  int32_t k = begin;
#pragma unroll 1
  for (const int32_t in_table = min(end, kTableTaps); k < in_table; ++k) add(table[k * stride]);
#pragma unroll 1
  for (; k < end; ++k) add(Weight<kInterpolation>(taps, k));
}

// Resizes kRows rows of the strip to this thread's column: `row`, and every kWarpRows behind it. `from`: the
// first tap's pixel in the first one. A weight serves all rows, whose loads do not wait for each other.
template <uint32_t kInterpolation, bool kGray, int32_t kRows>
__device__ inline void ResizeRows(TileMemory& tile, const uint8_t* from, uint32_t pitch, int32_t row,
                                  int32_t column) {
  const uint8_t* at[kRows];
  Sums sums[kRows];
#pragma unroll
  for (int32_t i = 0; i < kRows; ++i) at[i] = from + uint64_t(row + i * kWarpRows) * pitch;
  const Taps& taps = tile.columns[column];
  ForTaps<kInterpolation>(taps, &tile.column_weights[0][column], kDecodeTileWidth, 0, taps.count,
                          [&](float weight) {
#pragma unroll
                            for (int32_t i = 0; i < kRows; ++i) {
                              const Rgb pixel = ColourOf<kGray>(at[i]);
                              sums[i].Add(weight, pixel.r, pixel.g, pixel.b);
                              at[i] += 3;
                            }
                          });
#pragma unroll
  for (int32_t i = 0; i < kRows; ++i)
    tile.strip[row + i * kWarpRows][column] = make_float4(
        Rounded<kInterpolation>(sums[i].r) - kWholeFloats, Rounded<kInterpolation>(sums[i].g) - kWholeFloats,
        Rounded<kInterpolation>(sums[i].b) - kWholeFloats, 0);
}

template <uint32_t kInterpolation, bool kGray>
__device__ void MakeTile(const DecodeImages& work, const DecodedImage& image, TileMemory& tile, int32_t left,
                         int32_t top) {
  const int32_t width = min(kDecodeTileWidth, work.width - left);
  const int32_t height = min(kDecodeTileHeight, work.height - top);
  const int32_t column = threadIdx.x % kDecodeTileWidth;
  const int32_t warp = threadIdx.x / kDecodeTileWidth;
  if (warp == 0 && column < width)
    tile.columns[column] = TapsOf<kInterpolation>(image.x, image.x.out + left + column);
  if (warp == 1 && column < height)
    tile.rows[column] = TapsOf<kInterpolation>(image.y, image.y.out + top + column);
  __syncthreads();
  for (int32_t k = warp; k < kTableTaps; k += kWarpRows) {
    if (column < width) tile.column_weights[k][column] = Weight<kInterpolation>(tile.columns[column], k);
    if (column < height) tile.row_weights[k][column] = Weight<kInterpolation>(tile.rows[column], k);
  }
  __syncthreads();

  // The rows of the region that the tile needs.
  const int32_t begin = tile.rows[0].first;
  const int32_t end = tile.rows[height - 1].first + tile.rows[height - 1].count;
  for (int32_t strip_begin = begin; strip_begin < end; strip_begin += kStripRows) {
    const int32_t strip_rows = min(kStripRows, end - strip_begin);
    if (column < width) {
      const uint8_t* const from =
          AddressOf(image, image.x.first + tile.columns[column].first, image.y.first + strip_begin);
      int32_t row = warp;
      for (; row + 3 * kWarpRows < strip_rows; row += 4 * kWarpRows)
        ResizeRows<kInterpolation, kGray, 4>(tile, from, image.pitch, row, column);
      if (row + kWarpRows < strip_rows) {
        ResizeRows<kInterpolation, kGray, 2>(tile, from, image.pitch, row, column);
        row += 2 * kWarpRows;
      }
      if (row < strip_rows) ResizeRows<kInterpolation, kGray, 1>(tile, from, image.pitch, row, column);
    }
    __syncthreads();
#pragma unroll 1
    for (int32_t y = warp; y < height && column < width; y += kWarpRows) {
      const Taps& taps = tile.rows[y];
      const int32_t before = strip_begin - taps.first;  // taps that lie before the strip
      const int32_t so_far = min(taps.count, before + strip_rows);
      if (before >= taps.count || so_far <= 0) continue;
      Sums sums;
      if (before > 0) sums = {tile.sums[y][column].x, tile.sums[y][column].y, tile.sums[y][column].z};
      const float4* pixel = &tile.strip[max(-before, 0)][column];
      ForTaps<kInterpolation>(taps, &tile.row_weights[0][y], kDecodeTileHeight, max(before, 0), so_far,
                              [&](float weight) {
                                sums.Add(weight, pixel->x, pixel->y, pixel->z);
                                pixel += kDecodeTileWidth;
                              });
      if (so_far < taps.count)
        tile.sums[y][column] = make_float4(sums.r, sums.g, sums.b, 0);
      else
        WritePixel(work, image, left + column, top + y, __float_as_uint(Rounded<kInterpolation>(sums.r)),
                   __float_as_uint(Rounded<kInterpolation>(sums.g)),
                   __float_as_uint(Rounded<kInterpolation>(sums.b)));
    }
    __syncthreads();
  }
}

template <uint32_t kInterpolation>
__device__ inline void MakeTile(const DecodeImages& work, const DecodedImage& image, TileMemory& tile,
                                int32_t left, int32_t top) {
  if (image.grayscale != 0)
    MakeTile<kInterpolation, true>(work, image, tile, left, top);
  else
    MakeTile<kInterpolation, false>(work, image, tile, left, top);
}

__device__ inline void WriteZeros(const DecodeImages& work, const DecodedImage& image, int32_t left,
                                  int32_t top) {
  for (uint32_t i = threadIdx.x; i < kDecodeTileWidth * kDecodeTileHeight; i += kDecodeThreads) {
    const int32_t x = left + i % kDecodeTileWidth;
    const int32_t y = top + i / kDecodeTileWidth;
    if (x < int32_t(work.width) && y < int32_t(work.height)) WritePixel(work, image, x, y, 0, 0, 0);
  }
}

__device__ inline void Decode(const DecodeImages& work) {
  __shared__ DecodedImage image;
  __shared__ TileMemory tile;
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
    MakeTile<kInterpolateNearest>(work, image, tile, left, top);
  } else if (image.interpolation == kInterpolateBilinear) {
    MakeTile<kInterpolateBilinear>(work, image, tile, left, top);
  } else if (image.interpolation == kInterpolateBicubic) {
    MakeTile<kInterpolateBicubic>(work, image, tile, left, top);
  } else {
    MakeTile<kInterpolateLanczos>(work, image, tile, left, top);
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
    PoisonPixels(const __grid_constant__ pinfeed::DecodeImages work) {
  pinfeed::Poison(work);
}
