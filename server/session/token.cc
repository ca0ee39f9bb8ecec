// SPDX-License-Identifier: Apache-2.0
#include "server/session/token.h"

#include "common/base/random.h"

namespace pinfeed {
Token NewToken() {
  return RandomBytes<Token>();
}

uint64_t RandomUint64() {
  uint64_t value = 0;
  FillRandom(&value, sizeof value);
  return value;
}

bool TokensEqual(const Token& a, const uint8_t (&b)[kTokenBytes]) {
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference = difference | static_cast<uint8_t>(a[i] ^ b[i]);  // NOLINT: i < kTokenBytes
  return difference == 0;
}

}  // namespace pinfeed
