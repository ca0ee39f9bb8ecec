// SPDX-License-Identifier: Apache-2.0
// Checks that gRPC will be able to start its threads.
#pragma once

#include "common/base/result.h"

namespace pinfeed {

// Starts and ends as many threads as a call takes, since gRPC does not notice if it cannot: it waits for them
// for ever. kResourceExhausted at the limit of processes, or where their stacks are beyond the limit of
// address space. What they allocate may still be, which is not seen here.
Status CheckSpareThreads();

}  // namespace pinfeed
