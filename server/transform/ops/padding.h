// SPDX-License-Identifier: Apache-2.0
// The parameters that Pad and RandomCrop share: padding, fill, padding_mode.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/image/image.h"
#include "server/transform/transform.h"

namespace pinfeed {

// The number of pixels to add on each side, and their values.
struct Padding {
  int32_t left = 0;
  int32_t top = 0;
  int32_t right = 0;
  int32_t bottom = 0;
  Border border;
  size_t fill_values = 1;  // the number of given fill values: 1, or 3 for the channels

  ImageSize Padded(ImageSize image) const {
    return {image.width + left + right, image.height + top + bottom};
  }
  bool FillsWithColour() const { return border.fill != std::array<uint8_t, 3>{}; }
};

Padding ReadPadding(TransformParameterReader& parameters);

// Reports that images of one channel cannot be filled with three values.
void CheckFill(const Padding& padding, const ImageForm& form, const Transform::Report& report);

}  // namespace pinfeed
