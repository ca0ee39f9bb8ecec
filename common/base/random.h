// SPDX-License-Identifier: Apache-2.0
// Cryptographically secure random bytes from the kernel.
#pragma once

#include <cstddef>

namespace pinfeed {

// Any thread. Aborts if getrandom(2) fails, which cannot happen once the kernel has booted.
void FillRandom(void* out, size_t bytes);

// Returns a T filled with random bytes. T: a std::array of bytes.
template <typename T>
T RandomBytes() {
  T value;
  FillRandom(value.data(), value.size());
  return value;
}

}  // namespace pinfeed
