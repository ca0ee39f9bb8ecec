// SPDX-License-Identifier: Apache-2.0
// Page-locks host memory, so that a GPU can read it itself. Uses no CUDA types, so that the library also
// builds without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/result.h"

namespace pinfeed {

// Page-locks memory that outlives what is returned: the registration with the driver, with a share of the
// GPU's primary context. No copy from the memory may be under way when it is destroyed. kUnavailable if the
// build or the process has no CUDA; else the driver's errors: the memory can be used all the same.
Result<std::shared_ptr<const void>> PageLock(int ordinal, std::byte* address, uint64_t bytes);

}  // namespace pinfeed
