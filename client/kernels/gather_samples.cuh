// SPDX-License-Identifier: Apache-2.0
// Makes a batch of resident samples, on the trainer's stream. It is bound by memory bandwidth. All blocks get
// an equal, contiguous share of the batch, so that each needs the places of a few samples only: it computes
// these first, together, and keeps them in shared memory. Random numbers are drawn here rather than by the
// daemon, which would need a core for it.
#pragma once

#include "client/kernels/gather_samples.h"
#include "client/kernels/pixel_groups.cuh"

namespace pinfeed {

// Where a sample of the batch comes from.
struct SamplePlace {
  uint64_t index;
  ViewPlace place;
  uint32_t zero;
};

__device__ inline uint64_t IndexOf(const GatherSamples& work, uint32_t sample, uint32_t* zero) {
  const uint32_t index = work.indexes[sample];
  const uint32_t number = index & ~kZeroIndex;
  const bool valid = number < work.dataset_samples;
  *zero = !valid || index != number;
  return valid ? number : 0;
}

// Calls `each(place, sample, unit)` for this block's share of samples * units_per_sample units.
template <bool kViews, typename Each>
__device__ inline void ForShare(const GatherSamples& work, uint64_t units_per_sample, uint64_t least,
                                SamplePlace* places, const Each& each) {
  const uint64_t all = work.samples * units_per_sample;
  uint64_t share = (all + gridDim.x - 1) / gridDim.x;
  if (share < least) share = least;
  const uint64_t begin = blockIdx.x * share;
  const uint64_t end = begin + share < all ? begin + share : all;
  if (begin >= end) return;
  const auto last = uint32_t((end - 1) / units_per_sample);
  for (uint32_t first = uint32_t(begin / units_per_sample); first <= last; first += kConvertThreads) {
    const uint32_t count = min(kConvertThreads, last - first + 1);
    __syncthreads();  // the places before are not needed any more
    if (threadIdx.x < count) {
      SamplePlace& mine = places[threadIdx.x];
      mine.index = IndexOf(work, first + threadIdx.x, &mine.zero);
      if constexpr (kViews) mine.place = PlaceOf(work.view, work.epoch, mine.index);
    }
    __syncthreads();
    const uint64_t from = max(begin, first * units_per_sample);
    const uint64_t to = min(end, (uint64_t(first) + count) * units_per_sample);
    // 32-bit arithmetic within the share: divisions of 64 bits are slow.
    const auto units = uint32_t(units_per_sample);
    const auto skipped = uint32_t(from - first * units_per_sample);
    const auto n = uint32_t(to - from);
    for (uint32_t i = threadIdx.x; i < n; i += kConvertThreads) {
      const uint32_t sample = (skipped + i) / units;
      each(places[sample], first + sample, (skipped + i) - sample * units);
    }
  }
}

template <typename Word>
__device__ inline void GatherWords(const GatherSamples& work, const SampleCopy& copy, SamplePlace* places) {
  const uint64_t words = copy.bytes / sizeof(Word);
  const Word* const source = reinterpret_cast<const Word*>(copy.source);
  Word* const out = reinterpret_cast<Word*>(copy.out);
  ForShare<false>(work, words, kConvertThreads, places,
                  [&](const SamplePlace& place, uint32_t sample, uint32_t word) {
                    out[sample * words + word] = source[place.index * words + word];
                  });
}

__device__ inline void GatherCopy(const GatherSamples& work, const SampleCopy& copy, SamplePlace* places) {
  if (copy.bytes == 0) return;
  const uintptr_t all =
      reinterpret_cast<uintptr_t>(copy.source) | reinterpret_cast<uintptr_t>(copy.out) | copy.bytes;
  if (all % sizeof(uint4) == 0) {
    GatherWords<uint4>(work, copy, places);
  } else if (all % sizeof(uint2) == 0) {
    GatherWords<uint2>(work, copy, places);
  } else if (all % sizeof(uint32_t) == 0) {
    GatherWords<uint32_t>(work, copy, places);
  } else {
    GatherWords<uint8_t>(work, copy, places);
  }
}

// Pixels of which some lie outside the image, or fewer than a group: one by one.
template <uint32_t kChannels>
__device__ inline PixelGroup<kChannels> ReadPixels(const SampleView& view, const uint8_t* image, int32_t left,
                                                   int32_t top, uint32_t count, bool chw, uint64_t plane) {
  const auto mode = BorderMode(view.border);
  const int32_t row = PixelAt(top, int32_t(view.source_height), mode);
  PixelGroup<kChannels> group{};
#pragma unroll
  for (uint32_t k = 0; k < kGroupPixels; ++k) {
    const int32_t column = PixelAt(left + int32_t(k), int32_t(view.source_width), mode);
    const bool filled = row < 0 || column < 0;
    const uint64_t pixel = uint64_t(uint32_t(row)) * view.source_width + uint32_t(column);
    if (k >= count) continue;
#pragma unroll
    for (uint32_t c = 0; c < kChannels; ++c) {
      const uint32_t value =
          filled ? view.fill[c] & 0xFF : image[chw ? c * plane + pixel : pixel * kChannels + c];
      group.words[c][k / 4] |= value << (8 * (k % 4));
    }
  }
  return group;
}

template <typename Element, uint32_t kChannels>
__device__ inline void GatherImage(const GatherSamples& work, SamplePlace* places, const uint32_t* table) {
  const SampleView& view = work.view;
  const uint64_t source_plane = uint64_t(view.source_height) * view.source_width;
  const uint64_t plane = uint64_t(view.height) * view.width;
  const uint32_t groups = (view.width + kGroupPixels - 1) / kGroupPixels;
  const bool source_chw = work.source_chw != 0;
  const bool out_chw = work.out_chw != 0;
  ForShare<true>(
      work, uint64_t(view.height) * groups, 1, places,
      [&](const SamplePlace& sample, uint32_t n, uint32_t group) {
        const uint32_t y = group / groups;
        const uint32_t x = (group - y * groups) * kGroupPixels;
        const uint32_t count = min(kGroupPixels, view.width - x);
        // Of the source, left to right.
        const int32_t left = sample.place.x + int32_t(sample.place.flip ? view.width - x - count : x);
        const int32_t top = sample.place.y + int32_t(sample.place.flip_vertical ? view.height - 1 - y : y);
        const uint8_t* const image = work.pixels + sample.index * source_plane * kChannels;
        const bool inside = count == kGroupPixels && left >= 0 &&
                            left + int32_t(kGroupPixels) <= int32_t(view.source_width) && top >= 0 &&
                            top < int32_t(view.source_height);
        PixelGroup<kChannels> pixels;
        if (inside) {
          const uint64_t first = uint64_t(uint32_t(top)) * view.source_width + uint32_t(left);
          pixels =
              LoadGroup<kChannels>(image + first * (source_chw ? 1 : kChannels), source_chw, source_plane);
        } else {
          pixels = ReadPixels<kChannels>(view, image, left, top, count, source_chw, source_plane);
        }
        if (sample.place.flip) Mirror(pixels, count);
        Element* const out = static_cast<Element*>(work.out) + n * plane * kChannels;
        const uint64_t at = uint64_t(y) * view.width + x;
        StoreGroup<Element, kChannels>(pixels, table, sample.zero != 0 ? 0 : ~uint32_t(0), count, out_chw,
                                       plane, out + (out_chw ? at : at * kChannels));
      });
}

template <typename Element>
__device__ inline void GatherBatch(const GatherSamples& work) {
  __shared__ SamplePlace places[kConvertThreads];
  __shared__ uint32_t table[3 * 256];
  if (work.pixels != nullptr) {
    for (uint32_t i = threadIdx.x; i < 256 * work.channels; i += kConvertThreads) table[i] = work.table[i];
    if (work.channels == 3)
      GatherImage<Element, 3>(work, places, table);
    else
      GatherImage<Element, 1>(work, places, table);
  }
  for (uint32_t i = 0; i < work.copy_count; ++i) GatherCopy(work, work.copies[i], places);
}

}  // namespace pinfeed

extern "C" __global__ void __launch_bounds__(pinfeed::kConvertThreads, pinfeed::kConvertBlocks)
    GatherSamples1(const __grid_constant__ pinfeed::GatherSamples work) {
  pinfeed::GatherBatch<uint8_t>(work);
}
extern "C" __global__ void __launch_bounds__(pinfeed::kConvertThreads, pinfeed::kConvertBlocks)
    GatherSamples2(const __grid_constant__ pinfeed::GatherSamples work) {
  pinfeed::GatherBatch<uint16_t>(work);
}
extern "C" __global__ void __launch_bounds__(pinfeed::kConvertThreads, pinfeed::kConvertBlocks)
    GatherSamples4(const __grid_constant__ pinfeed::GatherSamples work) {
  pinfeed::GatherBatch<uint32_t>(work);
}
