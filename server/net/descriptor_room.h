// SPDX-License-Identifier: Apache-2.0
// Whether another session's descriptors are there. In: the limits. Out: a refusal by name, while connections
// can still be accepted to be told it.
#pragma once

#include <cstdint>
#include <functional>

#include "common/base/status.h"

namespace pinfeed {

// kResourceExhausted, with the numbers, when another session would take descriptors that connections need.
// `count_open` lists a directory, so it is asked only where so many sessions could use them up.
Status CheckDescriptorRoom(uint32_t max_sessions, uint32_t max_fds,
                           const std::function<uint32_t()>& count_open);

}  // namespace pinfeed
