// SPDX-License-Identifier: Apache-2.0
// Checks that gRPC will be able to start its threads.
#pragma once

#include "common/base/result.h"

namespace pinfeed {

// Starts and ends as many threads as a call takes, since gRPC does not notice if it cannot: it waits for them
// for ever. kResourceExhausted at the limit of processes or of address space.
Status CheckSpareThreads();

}  // namespace pinfeed
