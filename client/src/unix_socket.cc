// SPDX-License-Identifier: Apache-2.0
#include "client/src/unix_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <thread>

namespace pinfeed {
namespace {

constexpr std::chrono::milliseconds kBacklogRetry{5};

Status ConnectError(const std::string& path, int error) {
  Status status = ErrnoStatus("connect to pinfeedd at " + path, error);
  if (error == ENOENT || error == ECONNREFUSED) {
    return {
        Code::kUnavailable,
        status.message() + "; is the daemon running? Start pinfeedd, or set PINFEED_ADDRESS to its socket",
        error};
  }
  if (error == EACCES || error == EPERM) {
    return {Code::kPermissionDenied,
            status.message() + "; this user may not use the daemon's socket (see its owner and group)",
            error};
  }
  return status;
}

}  // namespace

int PollTimeout(SteadyTime deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
}

Result<UniqueFd> ConnectUnix(const std::string& path, int type, SteadyTime deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path) || path.find('\0') != std::string::npos) {
    return InvalidArgument("'" + path + "' is no path of a Unix socket (1 to " +
                           std::to_string(sizeof(address.sun_path) - 1) + " bytes)");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus("make a socket to connect to " + path, errno);
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EINTR) continue;
    // On a Unix socket EAGAIN means that the listener's backlog is full, and poll(2) cannot wait for that.
    if (errno != EAGAIN) return ConnectError(path, errno);
    if (std::chrono::steady_clock::now() >= deadline) {
      return Status(Code::kDeadlineExceeded,
                    "connect to pinfeedd at " + path + ": the daemon accepts no connection in time");
    }
    std::this_thread::sleep_for(kBacklogRetry);
  }
  return fd;
}

}  // namespace pinfeed
