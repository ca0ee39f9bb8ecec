// SPDX-License-Identifier: Apache-2.0
// Makes a batch of resident samples, on the trainer's stream. It is bound by memory bandwidth. All blocks get
// an equal, contiguous share of the batch, so that each needs the places of a few samples only: it computes
// these first, together, and keeps them in shared memory. Random numbers are drawn here rather than by the
// daemon, which would need a core for it.
#pragma once

#include "client/kernels/gather_samples.h"

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
  for (uint32_t first = uint32_t(begin / units_per_sample); first <= last; first += kSamplesThreads) {
    const uint32_t count = min(kSamplesThreads, last - first + 1);
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
    for (uint32_t i = threadIdx.x; i < n; i += kSamplesThreads) {
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
  ForShare<false>(work, words, kSamplesThreads, places,
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

// The table's element of each channel of one pixel of the view.
template <typename Element>
struct PixelReader {
  const GatherSamples& work;
  const uint32_t* table;
  uint32_t pixel;   // distance between pixels of the source, in bytes
  uint64_t plane;   // distance between its channels
  uint64_t stride;  // between its samples

  __device__ void Read(const SamplePlace& sample, uint32_t x, uint32_t y, Element* out, uint32_t step) const {
    const SampleView& view = work.view;
    const auto mode = BorderMode(view.border);
    const uint32_t column = sample.place.flip ? view.width - 1 - x : x;
    const uint32_t row = sample.place.flip_vertical ? view.height - 1 - y : y;
    const int32_t from_x = PixelAt(sample.place.x + int32_t(column), int32_t(view.source_width), mode);
    const int32_t from_y = PixelAt(sample.place.y + int32_t(row), int32_t(view.source_height), mode);
    const bool filled = from_x < 0 || from_y < 0;
    const uint8_t* const from =
        work.pixels + sample.index * stride +
        (filled ? 0 : uint64_t(uint32_t(from_y)) * view.source_width + from_x) * pixel;
    for (uint32_t c = 0; c < work.channels; ++c) {
      const uint32_t value = filled ? view.fill[c] & 0xFF : from[c * plane];
      out[c * step] = sample.zero != 0 ? Element(0) : Element(table[256 * c + value]);
    }
  }
};

template <typename Element>
struct alignas(sizeof(Element) * kSamplesPixels) SampleQuad {
  Element value[kSamplesPixels];
};

template <typename Element>
__device__ inline void GatherImage(const GatherSamples& work, SamplePlace* places, uint32_t* table) {
  for (uint32_t i = threadIdx.x; i < 256 * work.channels; i += kSamplesThreads) table[i] = work.table[i];
  const SampleView& view = work.view;
  const uint64_t source_pixels = uint64_t(view.source_height) * view.source_width;
  const uint64_t pixels = uint64_t(view.height) * view.width;
  const uint32_t groups = (view.width + kSamplesPixels - 1) / kSamplesPixels;
  const bool chw = work.source_chw != 0;
  const PixelReader<Element> reader{work, table, chw ? 1 : work.channels, chw ? source_pixels : 1,
                                    source_pixels * work.channels};
  const bool whole = view.width % kSamplesPixels == 0;
  const bool packed =
      whole && work.out_chw != 0 && reinterpret_cast<uintptr_t>(work.out) % sizeof(SampleQuad<Element>) == 0;
  // Rows of the source that are read as words where a view's four pixels are four of the source.
  const bool words = whole && view.source_width % 4 == 0 && source_pixels % 4 == 0 &&
                     reinterpret_cast<uintptr_t>(work.pixels) % 4 == 0;
  ForShare<true>(
      work, uint64_t(view.height) * groups, 1, places,
      [&](const SamplePlace& sample, uint32_t n, uint32_t group) {
        const uint32_t y = group / groups;
        const uint32_t x = (group - y * groups) * kSamplesPixels;
        const uint32_t count = min(kSamplesPixels, view.width - x);
        Element* const out = static_cast<Element*>(work.out) + n * pixels * work.channels;
        Element values[3][kSamplesPixels];
        const int32_t left = sample.place.x + int32_t(sample.place.flip ? view.width - x - count : x);
        const int32_t row = sample.place.y + int32_t(sample.place.flip_vertical ? view.height - 1 - y : y);
        if (words && left >= 0 && left % 4 == 0 && left + 4 <= int32_t(view.source_width) && row >= 0 &&
            row < int32_t(view.source_height)) {
          const uint8_t* const from = work.pixels + sample.index * reader.stride +
                                      (uint64_t(row) * view.source_width + left) * reader.pixel;
          uint32_t word[3] = {};
#pragma unroll
          for (uint32_t c = 0; c < 3; ++c)
            if (c < work.channels)
              word[c] = reinterpret_cast<const uint32_t*>(from + (chw ? c * reader.plane : 4 * c))[0];
          const bool interleaved = !chw && work.channels == 3;
#pragma unroll
          for (uint32_t k = 0; k < kSamplesPixels; ++k) {
            const uint32_t to = sample.place.flip ? kSamplesPixels - 1 - k : k;
#pragma unroll
            for (uint32_t c = 0; c < 3; ++c) {
              if (c >= work.channels) break;
              const uint32_t value =
                  (interleaved ? word[(3 * k + c) / 4] >> (8 * ((3 * k + c) % 4)) : word[c] >> (8 * k)) &
                  0xFF;
              const Element element = sample.zero != 0 ? Element(0) : Element(table[256 * c + value]);
          // Not values[c][to]: an index that is not known when compiling puts the array into memory.
#pragma unroll
              for (uint32_t j = 0; j < kSamplesPixels; ++j)
                if (j == to) values[c][j] = element;
            }
          }
        } else {
#pragma unroll
          for (uint32_t k = 0; k < kSamplesPixels; ++k)
            if (k < count) reader.Read(sample, x + k, y, &values[0][k], kSamplesPixels);
        }
#pragma unroll
        for (uint32_t c = 0; c < 3; ++c) {
          if (c >= work.channels) break;
          if (packed) {
            SampleQuad<Element> quad;
#pragma unroll
            for (uint32_t k = 0; k < kSamplesPixels; ++k) quad.value[k] = values[c][k];
            *reinterpret_cast<SampleQuad<Element>*>(out + c * pixels + uint64_t(y) * view.width + x) = quad;
          } else {
#pragma unroll
            for (uint32_t k = 0; k < kSamplesPixels; ++k) {
              if (k >= count) continue;
              const uint64_t at = uint64_t(y) * view.width + x + k;
              out[work.out_chw != 0 ? c * pixels + at : at * work.channels + c] = values[c][k];
            }
          }
        }
      });
}

template <typename Element>
__device__ inline void GatherBatch(const GatherSamples& work) {
  __shared__ SamplePlace places[kSamplesThreads];
  __shared__ uint32_t table[3 * 256];
  if (work.pixels != nullptr) GatherImage<Element>(work, places, table);
  for (uint32_t i = 0; i < work.copy_count; ++i) GatherCopy(work, work.copies[i], places);
}

}  // namespace pinfeed

extern "C" __global__ void __launch_bounds__(pinfeed::kSamplesThreads)
    GatherSamples1(const __grid_constant__ pinfeed::GatherSamples work) {
  pinfeed::GatherBatch<uint8_t>(work);
}
extern "C" __global__ void __launch_bounds__(pinfeed::kSamplesThreads)
    GatherSamples2(const __grid_constant__ pinfeed::GatherSamples work) {
  pinfeed::GatherBatch<uint16_t>(work);
}
extern "C" __global__ void __launch_bounds__(pinfeed::kSamplesThreads)
    GatherSamples4(const __grid_constant__ pinfeed::GatherSamples work) {
  pinfeed::GatherBatch<uint32_t>(work);
}
