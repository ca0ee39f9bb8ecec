// SPDX-License-Identifier: Apache-2.0
#include "server/net/descriptor_room.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace pinfeed {
namespace {

// What one session uses at most, with its feed, while it opens.
constexpr uint64_t kDescriptorsPerSession = 8;
// Upper bound for everything else: the daemon, its datasets, connections and lifelines.
constexpr uint64_t kOtherDescriptors = 8192;

}  // namespace

Status CheckDescriptorRoom(uint32_t max_sessions, uint32_t max_fds,
                           const std::function<uint32_t()>& count_open) {
  if (max_fds >= kDescriptorsPerSession * max_sessions + kOtherDescriptors) return OkStatus();
  const uint32_t open = count_open();
  const uint32_t for_connections = std::clamp(max_fds / 8, 8U, 64U);
  if (open + kDescriptorsPerSession + for_connections <= max_fds) return OkStatus();
  return ResourceExhausted(
      "open a feed: the daemon has opened " + std::to_string(open) + " of the " + std::to_string(max_fds) +
      " descriptors that it may open; a session takes up to " + std::to_string(kDescriptorsPerSession) +
      ", and " + std::to_string(for_connections) +
      " are reserved for connections. Close a feed, or have the operator raise the limit "
      "(LimitNOFILE= of the unit, "
      "ulimit -n) above eight times max_sessions");
}

Status CheckConnectionRoom(int fd, const std::string& who_takes_how_many) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoStatus("getrlimit of descriptors", errno);
  // The kernel gives the lowest free number, so a number tells how many are open.
  if (static_cast<rlim_t>(fd) < limit.rlim_cur / 4 * 3) return OkStatus();
  return ResourceExhausted("three quarters of the daemon's " + std::to_string(limit.rlim_cur) +
                           " descriptors are open, and " + who_takes_how_many +
                           "; use fewer processes, or have the operator raise LimitNOFILE= (ulimit -n)");
}

}  // namespace pinfeed
