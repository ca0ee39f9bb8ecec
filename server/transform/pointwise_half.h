// SPDX-License-Identifier: Apache-2.0
// Converts the two 16-bit floating-point formats to and from float32. Rounds to nearest, ties to even (IEEE
// 754-2019, 4.3.1).
#pragma once

#include <bit>
#include <cstdint>

namespace pinfeed {

// bfloat16: the upper half of a float32. Precondition: not a NaN.
inline uint16_t FloatToBfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
inline float Bfloat16ToFloat(uint16_t value) {
  return std::bit_cast<float>(uint32_t{value} << 16);
}

// binary16: 5 bits of exponent, 10 of fraction. Values of 65520 and above become infinite. Precondition: not
// a NaN.
inline uint16_t FloatToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude >= 0x477FF000) return sign | 0x7C00;
  if (magnitude < 0x38800000) {
    // Below 2^-14 the result is a multiple of 2^-24: adding 0.5, whose last bit is 2^-24, makes the adder
    // round to it.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5F)));
  }
  const uint32_t rebiased = magnitude - (112U << 23);
  return static_cast<uint16_t>(sign | ((rebiased + 0xFFF + ((rebiased >> 13) & 1)) >> 13));
}
inline float HalfToFloat(uint16_t value) {
  const uint32_t sign = uint32_t{value & 0x8000U} << 16;
  const uint32_t magnitude = value & 0x7FFFU;
  if (magnitude >= 0x7C00) return std::bit_cast<float>(sign | 0x7F800000);
  if (magnitude < 0x0400) {
    const float small = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(small));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112U << 23)));
}

}  // namespace pinfeed
