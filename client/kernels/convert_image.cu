// SPDX-License-Identifier: Apache-2.0
// The client's kernels (this, decode_images.cuh, gather_rows.cuh and gather_samples.cuh). This one is
// launched on the trainer's stream. In: a batch in its slot. Out: the trainer's tensors. It is bound by
// memory bandwidth: each byte is read once and each element written once. A thread handles four pixels of a
// row, so that loads have 32 bits where rows allow it and a warp stores whole cache lines.
#include "client/kernels/convert_image.h"
#include "client/kernels/copy_words.cuh"
#include "client/kernels/decode_images.cuh"
#include "client/kernels/gather_rows.cuh"
#include "client/kernels/gather_samples.cuh"

namespace pinfeed {
namespace {

constexpr uint32_t kPixels = 4;  // per thread, along a row

template <typename Element>
struct alignas(sizeof(Element) * kPixels) Quad {
  Element value[kPixels];
};

// Loads channel c of the pixels x, x + 1, ... of a row, in source order.
struct Source {
  const uint8_t* row;
  uint32_t pixel;  // distance between pixels, in bytes
  uint64_t plane;  // distance between channels, in bytes
  __device__ uint8_t At(uint32_t x, uint32_t c) const { return row[uint64_t(x) * pixel + c * plane]; }
};

__device__ void Copy(const ConvertImage& work) {
  const uint64_t thread = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x;
  const uint64_t threads = uint64_t(gridDim.x) * blockDim.x;
  for (uint32_t i = 0; i < work.copy_count; ++i) {
    CopyBytes(work.copies[i], thread, threads);
  }
}

template <typename Element>
__device__ void Convert(const ConvertImage& work) {
  Copy(work);
  if (work.samples == 0) return;
  __shared__ uint32_t table[3 * 256];
  for (uint32_t i = threadIdx.x; i < 256 * work.channels; i += blockDim.x) table[i] = work.table[i];
  __syncthreads();

  const uint32_t groups = (work.width + kPixels - 1) / kPixels;
  const uint64_t all = uint64_t(work.samples) * work.height * groups;
  const uint64_t pixels = uint64_t(work.height) * work.width;
  const bool whole = work.width % kPixels == 0;
  const bool aligned = whole && (reinterpret_cast<uintptr_t>(work.source) | work.sample_stride) % 4 == 0;
  const bool packed =
      whole && work.out_chw && reinterpret_cast<uintptr_t>(work.out) % sizeof(Quad<Element>) == 0;
  for (uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x; i < all;
       i += uint64_t(gridDim.x) * blockDim.x) {
    const uint64_t line = i / groups;
    const uint32_t x = uint32_t(i - line * groups) * kPixels;
    const uint32_t n = uint32_t(line / work.height);
    const uint32_t y = uint32_t(line - uint64_t(n) * work.height);
    const uint32_t count = min(kPixels, work.width - x);
    const uint8_t mark = work.mark != nullptr ? work.mark[n] : 0;
    const bool flip = mark == 1;
    const uint32_t keep = mark == 2 ? 0 : ~uint32_t(0);
    const uint32_t from = flip ? work.width - x - count : x;  // first pixel read

    const uint32_t pixel = work.source_chw ? 1 : work.channels;
    const Source source{work.source + n * work.sample_stride + uint64_t(y) * work.width * pixel, pixel,
                        work.source_chw ? pixels : 1};
    uint8_t bytes[3][kPixels];
    if (aligned && work.source_chw) {
      for (uint32_t c = 0; c < work.channels; ++c) {
        const uint32_t word = *reinterpret_cast<const uint32_t*>(source.row + c * pixels + from);
#pragma unroll
        for (uint32_t k = 0; k < kPixels; ++k) bytes[c][k] = uint8_t(word >> (8 * k));
      }
    } else if (aligned && work.channels == 3) {
      uint32_t words[3];
#pragma unroll
      for (uint32_t w = 0; w < 3; ++w)
        words[w] = reinterpret_cast<const uint32_t*>(source.row + 3 * uint64_t(from))[w];
#pragma unroll
      for (uint32_t k = 0; k < kPixels; ++k) {
#pragma unroll
        for (uint32_t c = 0; c < 3; ++c)
          bytes[c][k] = uint8_t(words[(3 * k + c) / 4] >> (8 * ((3 * k + c) % 4)));
      }
    } else {
      for (uint32_t k = 0; k < count; ++k) {
        for (uint32_t c = 0; c < work.channels; ++c) bytes[c][k] = source.At(from + k, c);
      }
    }

    Element* const out = static_cast<Element*>(work.out) + n * pixels * work.channels;
#pragma unroll
    for (uint32_t c = 0; c < 3; ++c) {
      if (c >= work.channels) break;
      const uint32_t* const values = table + 256 * c;
      if (packed) {
        Quad<Element> quad;
#pragma unroll
        for (uint32_t k = 0; k < kPixels; ++k)
          quad.value[k] = Element(values[bytes[c][flip ? kPixels - 1 - k : k]] & keep);
        *reinterpret_cast<Quad<Element>*>(out + c * pixels + uint64_t(y) * work.width + x) = quad;
      } else {
        for (uint32_t k = 0; k < count; ++k) {
          const uint64_t at = uint64_t(y) * work.width + x + k;
          out[work.out_chw ? c * pixels + at : at * work.channels + c] =
              Element(values[bytes[c][flip ? count - 1 - k : k]] & keep);
        }
      }
    }
  }
}

}  // namespace
}  // namespace pinfeed

extern "C" __global__ void __launch_bounds__(pinfeed::kConvertThreads)
    ConvertImage1(const __grid_constant__ pinfeed::ConvertImage work) {
  pinfeed::Convert<uint8_t>(work);
}
extern "C" __global__ void __launch_bounds__(pinfeed::kConvertThreads)
    ConvertImage2(const __grid_constant__ pinfeed::ConvertImage work) {
  pinfeed::Convert<uint16_t>(work);
}
extern "C" __global__ void __launch_bounds__(pinfeed::kConvertThreads)
    ConvertImage4(const __grid_constant__ pinfeed::ConvertImage work) {
  pinfeed::Convert<uint32_t>(work);
}
