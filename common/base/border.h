// SPDX-License-Identifier: Apache-2.0
// How to extend an image beyond its border. Compiled for the host and the device.
#pragma once

#include <cstdint>

namespace pinfeed {

enum class BorderMode {
  kConstant,
  kEdge,       // the nearest pixel of the image
  kReflect,    // mirrored at the outermost pixels, which are not repeated
  kSymmetric,  // mirrored at the border, so that the outermost pixels are repeated
};

// Returns the index of the pixel at `position` along a side of `size` pixels, as numpy.pad extends it. -1 for
// kConstant outside the image. Precondition: size > 0.
constexpr int32_t PixelAt(int32_t position, int32_t size, BorderMode mode) {
  if (position >= 0 && position < size) return position;
  if (mode == BorderMode::kConstant) return -1;
  if (mode == BorderMode::kEdge) return position < 0 ? 0 : size - 1;
  // Both modes are periodic: forwards and backwards through the pixels.
  const int32_t repeated = mode == BorderMode::kSymmetric ? 1 : 0;
  const int32_t period = 2 * (size - 1 + repeated);
  if (period == 0) return 0;
  const int32_t phase = (position % period + period) % period;
  return phase < size ? phase : period - phase - repeated;
}

}  // namespace pinfeed
