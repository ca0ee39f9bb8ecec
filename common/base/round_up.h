// SPDX-License-Identifier: Apache-2.0
// Whole parts of integers. Precondition of both functions: value + part <= UINT64_MAX.
#pragma once

#include <cstdint>

namespace pinfeed {

// How many parts cover `value`.
constexpr uint64_t PartsOf(uint64_t value, uint64_t part) {
  return (value + part - 1) / part;
}

// The first multiple of `part` that is not less than `value`.
constexpr uint64_t RoundUp(uint64_t value, uint64_t part) {
  return PartsOf(value, part) * part;
}

}  // namespace pinfeed
