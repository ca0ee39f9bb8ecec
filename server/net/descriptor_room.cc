// SPDX-License-Identifier: Apache-2.0
#include "server/net/descriptor_room.h"

#include <algorithm>
#include <string>

namespace pinfeed {
namespace {

// With its feed, and while it is opened.
constexpr uint64_t kOfASession = 8;
// More than the daemon itself, its datasets, and the connections and lifelines of many users have.
constexpr uint64_t kOfAllElse = 8192;

}  // namespace

Status CheckDescriptorRoom(uint32_t max_sessions, uint32_t max_fds,
                           const std::function<uint32_t()>& count_open) {
  if (max_fds >= kOfASession * max_sessions + kOfAllElse) return OkStatus();
  const uint32_t open = count_open();
  const uint32_t for_connections = std::clamp(max_fds / 8, 8U, 64U);
  if (open + kOfASession + for_connections <= max_fds) return OkStatus();
  return ResourceExhausted("open a feed: the daemon has " + std::to_string(open) + " of the " +
                           std::to_string(max_fds) +
                           " descriptors open that it may have; a session takes up to " +
                           std::to_string(kOfASession) + ", and " + std::to_string(for_connections) +
                           " are left to connections. Close a feed, or have the operator raise the limit "
                           "(LimitNOFILE= of the unit, "
                           "ulimit -n) above eight times max_sessions");
}

}  // namespace pinfeed
