// SPDX-License-Identifier: Apache-2.0
#include "server/net/descriptor_room.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "common/base/unique_handle.h"

namespace pinfeed {
namespace {

// What one session uses at most, with its feed, while it opens.
constexpr uint64_t kDescriptorsPerSession = 8;
// Upper bound for everything else: the daemon, its datasets, connections and lifelines.
constexpr uint64_t kOtherDescriptors = 8192;

// Of what is left beside sessions.
uint64_t ForConnections(uint64_t max_fds) {
  return std::clamp<uint64_t>(max_fds / 8, 8, 64);
}

constexpr char kAdvice[] = "; use fewer processes, or have the operator raise LimitNOFILE= (ulimit -n)";

}  // namespace

Status CheckDescriptorRoom(uint32_t max_sessions, uint64_t max_fds,
                           const std::function<uint32_t()>& count_open) {
  if (max_fds >= kDescriptorsPerSession * max_sessions + kOtherDescriptors) return OkStatus();
  const uint32_t open = count_open();
  const uint64_t for_connections = ForConnections(max_fds);
  if (open + kDescriptorsPerSession + for_connections <= max_fds) return OkStatus();
  return ResourceExhausted(
      "open a feed: the daemon has opened " + std::to_string(open) + " of the " + std::to_string(max_fds) +
      " descriptors that it may open; a session takes up to " + std::to_string(kDescriptorsPerSession) +
      ", and " + std::to_string(for_connections) +
      " are reserved for connections. Close a feed, or have the operator raise the limit "
      "(LimitNOFILE= of the unit, "
      "ulimit -n) above eight times max_sessions");
}

bool IsLeftToFiles(int fd, uint64_t max_fds) {
  // The kernel gives the lowest free number, so a number tells how many are open.
  return static_cast<uint64_t>(fd) + ForConnections(max_fds) / 2 >= max_fds;
}

bool NextIsLeftToFiles(int listener) {
  const UniqueFd next(::fcntl(listener, F_DUPFD_CLOEXEC, 0));
  pollfd waiting{listener, POLLIN, 0};
  return next && IsLeftToFiles(next.get(), DescriptorLimit()) && ::poll(&waiting, 1, 0) != 0;
}

uint64_t DescriptorLimit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? uint64_t{limit.rlim_cur} : UINT64_MAX;
}

Status CheckConnectionRoom(int fd, const std::string& who_takes_how_many, uint64_t max_fds) {
  // The kernel gives the lowest free number, so a number tells how many are open.
  if (static_cast<uint64_t>(fd) < max_fds / 4 * 3) return OkStatus();
  return ResourceExhausted("three quarters of the daemon's " + std::to_string(max_fds) +
                           " descriptors are open, and " + who_takes_how_many + kAdvice);
}

Result<ConnectionRoom::Taken> ConnectionRoom::Take(uid_t user, uint64_t count,
                                                   const std::string& who_takes_how_many, uint64_t max_fds) {
  const uint64_t most = max_fds / 8 * 3;
  if (count <= most) {
    if (Taken taken = users_.TryAdd(user, count, most - count)) return taken;
  }
  return ResourceExhausted(
      "this user's (uid " + std::to_string(user) + ") producers and batchers' processes have " +
      std::to_string(users_.Of(user)) + " of the daemon's " + std::to_string(max_fds) +
      " descriptors, of which one user's may have three eighths, and " + who_takes_how_many + kAdvice);
}

}  // namespace pinfeed
