// SPDX-License-Identifier: Apache-2.0
// Random bytes from the kernel, fit for secrets.
#pragma once

#include <cstddef>

namespace pinfeed {

// Any thread. Ends the process if the kernel gives none, which it always does once it has booted:
// getrandom(2).
void FillRandom(void* out, size_t bytes);

// A value of random bytes.
template <typename T>
T RandomBytes() {
  T value;
  FillRandom(value.data(), value.size());
  return value;
}

}  // namespace pinfeed
