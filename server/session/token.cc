// SPDX-License-Identifier: Apache-2.0
#include "server/session/token.h"

#include <sys/random.h>

#include "common/status.h"

namespace pinfeed {
namespace {

// Up to 256 bytes come whole once the kernel's pool is ready, which it is long before a daemon starts:
// getrandom(2).
void FillRandom(void* out, size_t bytes) {
  PF_CHECK(::getrandom(out, bytes, 0) == static_cast<ssize_t>(bytes), "the kernel gives random bytes");
}

}  // namespace

Token NewToken() {
  Token token;
  FillRandom(token.data(), token.size());
  return token;
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
