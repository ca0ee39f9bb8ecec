// SPDX-License-Identifier: Apache-2.0
// Session tokens and random numbers from the kernel.
#pragma once

#include <array>
#include <cstdint>

#include "common/wire/shared_page.h"

namespace pinfeed {

// The secret that opens one session's lifeline. Never logged.
using Token = std::array<uint8_t, kTokenBytes>;

Token NewToken();
uint64_t RandomUint64();

// Compares in constant time.
bool TokensEqual(const Token& a, const uint8_t (&b)[kTokenBytes]);

}  // namespace pinfeed
