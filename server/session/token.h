// SPDX-License-Identifier: Apache-2.0
// Session tokens.
#pragma once

#include <array>
#include <cstdint>

#include "common/base/random.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// The secret that opens one session's lifeline. Never logged.
using Token = std::array<uint8_t, kTokenBytes>;

// Compares in constant time.
inline bool TokensEqual(const Token& a, const uint8_t (&b)[kTokenBytes]) {
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference = difference | static_cast<uint8_t>(a[i] ^ b[i]);  // NOLINT: i < kTokenBytes
  return difference == 0;
}

}  // namespace pinfeed
