// SPDX-License-Identifier: Apache-2.0
// Checks that descriptors are left for another session. In: the limits. Out: a refusal, while the daemon can
// still accept connections and send it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/status.h"

namespace pinfeed {

// Returns kResourceExhausted, with the numbers, if another session would use descriptors that connections
// need. Calls `count_open`, which lists a directory, only if `max_sessions` sessions could use up `max_fds`.
Status CheckDescriptorRoom(uint32_t max_sessions, uint32_t max_fds,
                           const std::function<uint32_t()>& count_open);

// The same for what a producer or a batcher's process takes beside sessions: `fd` is its newest descriptor.
// Leaves a quarter of all to sessions and other connections.
Status CheckConnectionRoom(int fd, const std::string& who_takes_how_many);

}  // namespace pinfeed
