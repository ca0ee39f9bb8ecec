// SPDX-License-Identifier: Apache-2.0
#include "tests/support/samples_on_host.h"

#include <algorithm>

namespace pinfeed {
namespace {

constexpr uint64_t kTableEntries = 256;  // a channel's

struct Sample {
  uint64_t number = 0;
  bool zero = false;
};

Sample SampleOf(const GatherSamples& work, uint32_t i) {
  const uint32_t number = work.indexes[i] & ~kZeroIndex;
  if (number >= work.dataset_samples) return {0, true};
  return {number, work.indexes[i] != number};
}

// Crops, and flips where it writes; the device code reads flipped.
template <typename Element>
void MakeImage(const GatherSamples& work, const Sample& sample, Element* out) {
  const SampleView& view = work.view;
  const uint64_t source_pixels = uint64_t{view.source_height} * view.source_width;
  const uint64_t pixels = uint64_t{view.height} * view.width;
  const uint8_t* const image = work.pixels + sample.number * source_pixels * work.channels;
  const ViewPlace place = PlaceOf(view, work.epoch, sample.number);
  const auto mode = static_cast<BorderMode>(view.border);
  const auto from = [mode](int32_t first, uint32_t i, uint32_t size) {
    return PixelAt(first + static_cast<int32_t>(i), static_cast<int32_t>(size), mode);
  };
  for (uint32_t c = 0; c < work.channels; ++c) {
    for (uint32_t y = 0; y < view.height; ++y) {
      for (uint32_t x = 0; x < view.width; ++x) {
        const int32_t row = from(place.y, y, view.source_height);
        const int32_t column = from(place.x, x, view.source_width);
        auto value = static_cast<uint8_t>(view.fill[c]);
        if (row >= 0 && column >= 0) {
          const uint64_t pixel =
              static_cast<uint64_t>(row) * view.source_width + static_cast<uint64_t>(column);
          value = image[work.source_chw != 0 ? c * source_pixels + pixel : pixel * work.channels + c];
        }
        const uint64_t to = uint64_t{place.flip_vertical ? view.height - 1 - y : y} * view.width +
                            (place.flip ? view.width - 1 - x : x);
        out[work.out_chw != 0 ? c * pixels + to : to * work.channels + c] =
            sample.zero ? Element{0} : static_cast<Element>(work.table[c * kTableEntries + value]);
      }
    }
  }
}

template <typename Element>
void MakeImages(const GatherSamples& work) {
  const uint64_t elements = uint64_t{work.view.height} * work.view.width * work.channels;
  for (uint32_t i = 0; i < work.samples; ++i)
    MakeImage(work, SampleOf(work, i), static_cast<Element*>(work.out) + i * elements);
}

}  // namespace

void MakeSamplesOnHost(const GatherSamples& work, unsigned element_bytes) {
  for (uint32_t c = 0; c < work.copy_count; ++c) {
    const SampleCopy& copy = work.copies[c];
    for (uint32_t i = 0; i < work.samples; ++i)
      std::copy_n(copy.source + SampleOf(work, i).number * copy.bytes, copy.bytes, copy.out + i * copy.bytes);
  }
  if (work.pixels == nullptr) return;
  switch (element_bytes) {
    case 1:
      return MakeImages<uint8_t>(work);
    case 2:
      return MakeImages<uint16_t>(work);
    default:
      return MakeImages<uint32_t>(work);
  }
}

}  // namespace pinfeed
