// SPDX-License-Identifier: Apache-2.0
// arc4random(3), which libstdc++ takes for std::random_device and glibc has since 2.36 only.
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

uint32_t arc4random(void) {
  uint32_t value;
  while (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
    if (errno != EINTR) abort();
  }
  return value;
}
