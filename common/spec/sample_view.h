// SPDX-License-Identifier: Apache-2.0
// The part of its stored image that a sample shows in one epoch: random flips, and one crop that may reach
// beyond the image. Compiled for the host and the device, so that both draw the same.
#pragma once

#include <cstdint>

#include "common/base/border.h"
#include "common/base/sample_random.h"

namespace pinfeed {

// Set in the index of a resident sample that is bad: its image is made of zeros. A table would recolour them.
inline constexpr uint32_t kZeroIndex = uint32_t{1} << 31;

struct ViewStep {
  // Values are the wire's (pinfeed.v1.SampleView.Step.Kind).
  enum Kind : uint32_t { kFlip = 1, kFlipVertical = 2, kCrop = 3 };
  double p;            // of a flip: how likely it is
  uint32_t transform;  // its index in the feed's transforms, of which the draws depend
  uint32_t kind;
};
inline constexpr uint32_t kMaxViewSteps = 6;

// All images of a feed have one size, and so have their views. Precondition: no size and no number of
// positions is 0; at most one step is a crop, without which the view has the image's size.
struct SampleView {
  uint64_t seed;
  uint32_t source_height, source_width;
  uint32_t height, width;
  int32_t crop_x, crop_y;             // the crop's first position
  uint32_t positions_x, positions_y;  // how many positions it may have
  uint32_t border;                    // a BorderMode, for what lies outside the image
  uint32_t fill[3];                   // by channel, for kConstant
  uint32_t step_count;
  ViewStep steps[kMaxViewSteps];
};

// Pixel (column, row) of the view is PixelAt(x + column, ...) and PixelAt(y + row, ...) of the image, counted
// from the other end where flipped.
struct ViewPlace {
  int32_t x, y;
  bool flip, flip_vertical;
};

constexpr ViewPlace PlaceOf(const SampleView& view, uint64_t epoch, uint64_t sample) {
  ViewPlace place{0, 0, false, false};
  for (uint32_t i = 0; i < view.step_count; ++i) {
    const ViewStep& step = view.steps[i];
    SampleRandom random(view.seed, epoch, sample, step.transform);
    if (step.kind == ViewStep::kCrop) {
      // In the order of RandomCrop.
      place.y = view.crop_y + static_cast<int32_t>(random.Below(view.positions_y));
      place.x = view.crop_x + static_cast<int32_t>(random.Below(view.positions_x));
      // The position counts in the image as flipped so far.
      if (place.flip) place.x = static_cast<int32_t>(view.source_width - view.width) - place.x;
      if (place.flip_vertical) place.y = static_cast<int32_t>(view.source_height - view.height) - place.y;
    } else if (random.Unit() < step.p) {
      if (step.kind == ViewStep::kFlip)
        place.flip = !place.flip;
      else
        place.flip_vertical = !place.flip_vertical;
    }
  }
  return place;
}

}  // namespace pinfeed
