// SPDX-License-Identifier: Apache-2.0
// Checks that gRPC will be able to start its threads.
#pragma once

#include <string_view>

#include "common/base/result.h"

namespace pinfeed {

// Starts and ends as many threads as gRPC starts first, since it waits for ever, or aborts, if it cannot.
// kResourceExhausted at the limit of processes, or where their stacks are beyond the limit of address space.
// What they allocate may still be, which is not seen here. `what` gRPC is used for begins the error.
Status CheckSpareThreads(std::string_view what);

}  // namespace pinfeed
