// SPDX-License-Identifier: Apache-2.0
#include "common/base/random.h"

#include <sys/random.h>
#include <sys/types.h>

#include <cerrno>

#include "common/base/status.h"

namespace pinfeed {

void FillRandom(void* out, size_t bytes) {
  auto* place = static_cast<std::byte*>(out);
  while (bytes > 0) {
    const ssize_t filled = ::getrandom(place, bytes, 0);
    if (filled < 0 && errno == EINTR) continue;
    PF_CHECK(filled > 0, "the kernel provides random bytes");
    place += filled;
    bytes -= static_cast<size_t>(filled);
  }
}

}  // namespace pinfeed
