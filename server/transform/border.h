// SPDX-License-Identifier: Apache-2.0
// How to extend an image beyond its border.
#pragma once

#include <array>
#include <cstdint>

namespace pinfeed {

enum class BorderMode {
  kConstant,
  kEdge,       // the nearest pixel of the image
  kReflect,    // mirrored at the outermost pixels, which are not repeated
  kSymmetric,  // mirrored at the border, so that the outermost pixels are repeated
};

struct Border {
  BorderMode mode = BorderMode::kConstant;
  std::array<uint8_t, 3> fill{};  // RGB, for kConstant
  bool operator==(const Border&) const = default;
};

// Returns the index of the pixel at `position` along a side of `size` pixels, as numpy.pad extends it. -1 for
// kConstant outside the image. Precondition: size > 0.
inline int32_t PixelAt(int32_t position, int32_t size, BorderMode mode) {
  if (position >= 0 && position < size) return position;
  switch (mode) {
    case BorderMode::kConstant:
      return -1;
    case BorderMode::kEdge:
      return position < 0 ? 0 : size - 1;
    default:
      break;
  }
  // Both modes are periodic: forwards and backwards through the pixels.
  const int32_t repeated = mode == BorderMode::kSymmetric ? 1 : 0;
  const int32_t period = 2 * (size - 1 + repeated);
  if (period == 0) return 0;
  const int32_t phase = (position % period + period) % period;
  return phase < size ? phase : period - phase - repeated;
}

}  // namespace pinfeed
