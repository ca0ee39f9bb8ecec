// SPDX-License-Identifier: Apache-2.0
// The client's kernels (this, decode_images.cuh, gather_rows.cuh and gather_samples.cuh). This one is
// launched on the trainer's stream. In: a batch in its slot. Out: the trainer's tensors. It is bound by
// memory bandwidth: each byte is read once and each element written once.
#include "client/kernels/convert_image.h"
#include "client/kernels/copy_words.cuh"
#include "client/kernels/decode_images.cuh"
#include "client/kernels/gather_rows.cuh"
#include "client/kernels/gather_samples.cuh"
#include "client/kernels/pixel_groups.cuh"

namespace pinfeed {
namespace {

__device__ void Copy(const ConvertImage& work) {
  const uint64_t thread = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x;
  const uint64_t threads = uint64_t(gridDim.x) * blockDim.x;
  for (uint32_t i = 0; i < work.copy_count; ++i) {
    CopyBytes(work.copies[i], thread, threads);
  }
}

template <typename Element, uint32_t kChannels>
__device__ void ConvertPixels(const ConvertImage& work, const uint32_t* table) {
  const uint32_t groups = (work.width + kGroupPixels - 1) / kGroupPixels;
  const uint64_t all = uint64_t(work.samples) * work.height * groups;
  const uint64_t plane = uint64_t(work.height) * work.width;
  const bool source_chw = work.source_chw != 0;
  const bool out_chw = work.out_chw != 0;
  for (uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x; i < all;
       i += uint64_t(gridDim.x) * blockDim.x) {
    const uint64_t line = i / groups;
    const uint32_t x = uint32_t(i - line * groups) * kGroupPixels;
    const uint32_t n = uint32_t(line / work.height);
    const uint32_t y = uint32_t(line - uint64_t(n) * work.height);
    const uint32_t count = min(kGroupPixels, work.width - x);
    const uint8_t mark = work.mark != nullptr ? work.mark[n] : 0;
    const bool flip = mark == 1;
    const uint64_t from = uint64_t(y) * work.width + (flip ? work.width - x - count : x);
    PixelGroup<kChannels> pixels = LoadPixels<kChannels>(
        work.source + n * work.sample_stride + from * (source_chw ? 1 : kChannels), count, source_chw, plane);
    if (flip) Mirror(pixels, count);
    const uint64_t to = uint64_t(y) * work.width + x;
    StoreGroup<Element, kChannels>(
        pixels, table, mark == 2 ? 0 : ~uint32_t(0), count, out_chw, plane,
        static_cast<Element*>(work.out) + n * plane * kChannels + to * (out_chw ? 1 : kChannels));
  }
}

template <typename Element>
__device__ void Convert(const ConvertImage& work) {
  Copy(work);
  if (work.samples == 0) return;
  __shared__ uint32_t table[3 * 256];
  for (uint32_t i = threadIdx.x; i < 256 * work.channels; i += blockDim.x) table[i] = work.table[i];
  __syncthreads();
  if (work.channels == 3)
    ConvertPixels<Element, 3>(work, table);
  else
    ConvertPixels<Element, 1>(work, table);
}

}  // namespace
}  // namespace pinfeed

extern "C" __global__ void __launch_bounds__(pinfeed::kConvertThreads, pinfeed::kConvertBlocks)
    ConvertImage1(const __grid_constant__ pinfeed::ConvertImage work) {
  pinfeed::Convert<uint8_t>(work);
}
extern "C" __global__ void __launch_bounds__(pinfeed::kConvertThreads, pinfeed::kConvertBlocks)
    ConvertImage2(const __grid_constant__ pinfeed::ConvertImage work) {
  pinfeed::Convert<uint16_t>(work);
}
extern "C" __global__ void __launch_bounds__(pinfeed::kConvertThreads, pinfeed::kConvertBlocks)
    ConvertImage4(const __grid_constant__ pinfeed::ConvertImage work) {
  pinfeed::Convert<uint32_t>(work);
}
