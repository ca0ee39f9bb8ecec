// SPDX-License-Identifier: Apache-2.0
// Secrets and random numbers from the kernel.
#pragma once

#include <array>
#include <cstdint>

#include "common/wire/shared_page.h"

namespace pinfeed {

// The password of one session's lifeline. Never logged.
using Token = std::array<uint8_t, kTokenBytes>;

Token NewToken();
uint64_t RandomUint64();

// Takes the same time wherever the two differ.
bool TokensEqual(const Token& a, const uint8_t (&b)[kTokenBytes]);

}  // namespace pinfeed
