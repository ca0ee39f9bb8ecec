// SPDX-License-Identifier: Apache-2.0
#include "client/src/base/unix_socket.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <thread>

#include "common/os/unix_address.h"

namespace pinfeed {
namespace {

constexpr std::chrono::milliseconds kBacklogRetry{5};
// gRPC needs about 6 for a call. The rest is for threads that call or open something meanwhile.
constexpr size_t kSpareDescriptors = 16;

// A message of its own, because the user can correct this.
Status OutOfDescriptors(const std::string& what, int error) {
  if (error != EMFILE) return ErrnoStatus(what, error);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return {Code::kResourceExhausted,
          what + ": this process is at its limit of open files (" + std::to_string(limit.rlim_cur) +
              "); raise it with ulimit -n or close some",
          error};
}

Status ConnectError(const std::string& path, int error) {
  if (struct stat found{}; ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) {
    return {Code::kInvalidArgument,
            "connect to pinfeedd at " + path + ": that is a directory; the daemon's socket lies inside: " +
                path + (path.back() == '/' ? "" : "/") + "pinfeed.sock",
            error};
  }
  Status status = ErrnoStatus("connect to pinfeedd at " + path, error);
  if (error == ENOENT || error == ECONNREFUSED) {
    return {Code::kUnavailable,
            status.message() +
                "; is the daemon running? Start pinfeedd, or name its socket by address=, "
                "--address or PINFEED_ADDRESS",
            error};
  }
  if (error == EACCES || error == EPERM) {
    return {Code::kPermissionDenied,
            status.message() + "; this user may not use the daemon's socket (see its owner and group)",
            error};
  }
  if (error == EPROTOTYPE) {
    return {Code::kInvalidArgument,
            status.message() +
                "; that socket is of another kind, as the daemon's lifeline.sock: its "
                "pinfeed.sock takes requests",
            error};
  }
  return status;
}

}  // namespace

Status CheckSpareDescriptors(int fd) {
  std::array<UniqueFd, kSpareDescriptors> spare;
  for (UniqueFd& one : spare) {
    one.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!one) return OutOfDescriptors("call pinfeedd", errno);
  }
  return OkStatus();
}

Result<UniqueFd> ConnectUnix(const std::string& path, int type, SteadyTime deadline) {
  if (path.empty() || path.size() > kMaxSocketPath || path.find('\0') != std::string::npos) {
    return InvalidArgument("'" + path + "' is not a valid path of a Unix socket (1 to " +
                           std::to_string(kMaxSocketPath) + " bytes)");
  }
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return OutOfDescriptors("create a socket to connect to pinfeedd at " + path, errno);
  while (AtSocketPath(::connect, fd.get(), path) != 0) {
    if (errno == EINTR) continue;
    // On a Unix socket EAGAIN means that the listener's backlog is full, which poll(2) cannot wait for.
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
