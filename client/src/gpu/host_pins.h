// SPDX-License-Identifier: Apache-2.0
// Page-locks the slots of a session in host memory, so that a GPU can read them itself. Uses no CUDA types,
// so that the library also builds without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/result.h"

namespace pinfeed {

// Purpose: the page-locked slots of one session. Owns their registrations with the driver, and a share of the
// GPU's primary context. Borrows the slots, which outlive it. Threads: one at a time. Precondition of
// destruction: no copy from a slot is under way.
class HostPins {
 public:
  virtual ~HostPins() = default;
  // Page-locks a slot, once. To be called when the daemon has filled it: the first to touch memory is charged
  // for it. Errors: the driver's; the slot can be used all the same.
  virtual Status Pin(uint32_t slot, std::byte* address, uint64_t bytes) = 0;
};

// kUnavailable if the build or the process has no CUDA.
Result<std::unique_ptr<HostPins>> MakeHostPins(int ordinal, uint32_t slot_count);

}  // namespace pinfeed
