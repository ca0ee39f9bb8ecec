// SPDX-License-Identifier: Apache-2.0
// What a crop finds outside an image.
#pragma once

#include <array>
#include <cstdint>

namespace pinfeed {

enum class BorderMode {
  kConstant,
  kEdge,       // the nearest pixel of the image
  kReflect,    // the image mirrored at its outermost pixels, which are not repeated
  kSymmetric,  // the same, and they are repeated
};

struct Border {
  BorderMode mode = BorderMode::kConstant;
  std::array<uint8_t, 3> fill{};  // RGB, of kConstant
  bool operator==(const Border&) const = default;
};

// Of `size` pixels along one side, the one that lies at `position`, as numpy.pad puts them; -1: none, with
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
  // Both repeat: forth and back through the pixels.
  const int32_t repeated = mode == BorderMode::kSymmetric ? 1 : 0;
  const int32_t period = 2 * (size - 1 + repeated);
  if (period == 0) return 0;
  const int32_t phase = (position % period + period) % period;
  return phase < size ? phase : period - phase - repeated;
}

}  // namespace pinfeed
