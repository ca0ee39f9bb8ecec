// SPDX-License-Identifier: Apache-2.0
#include "server/net/socket_dir.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "common/base/quote.h"
#include "common/os/poll_timeout.h"
#include "common/os/unix_address.h"

namespace pinfeed {
namespace {

// Reads the pid that the lock's holder wrote into the file. For messages only.
std::string HolderOf(int fd) {
  std::array<char, 24> text{};
  const ssize_t count = ::pread(fd, text.data(), text.size() - 1, 0);
  std::string pid(text.data(), count > 0 ? static_cast<size_t>(count) : 0);
  pid.resize(std::min(pid.find_first_not_of("0123456789"), pid.size()));
  return pid.empty() ? "another process" : "pinfeedd with pid " + pid;
}

// How long a killed process may keep its socket after its lock is free. The kernel closes descriptors one by
// one, and those of GPUs are slow.
constexpr std::chrono::milliseconds kMaxExitTime(2000);
constexpr std::chrono::milliseconds kRetryInterval(50);

// Connects to the process that listens at `path`. Returns a null descriptor if its queue is full, and nothing
// if no process listens.
std::optional<UniqueFd> TryConnect(const std::string& path) {
  if (path.size() > kMaxSocketPath) return std::nullopt;
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd && AtSocketPath(::connect, fd.get(), path) == 0) return fd;
  return errno == EAGAIN ? std::optional<UniqueFd>(UniqueFd()) : std::nullopt;
}

// Whether the other side closes the connection by then without sending anything.
bool ClosesBy(std::chrono::steady_clock::time_point then, const UniqueFd& connection) {
  pollfd wait{connection.get(), POLLIN, 0};
  if (::poll(&wait, 1, PollTimeout(then)) <= 0) return false;
  char byte = 0;
  return ::recv(connection.get(), &byte, 1, MSG_PEEK) <= 0;
}

// Permission errors become InvalidArgument: only the operator can correct them.
Status LockError(const std::string& what, int error) {
  Status status = ErrnoStatus(what, error);
  if (error != EACCES && error != EPERM && error != EROFS) return status;
  return InvalidArgument(status.message() + "; user " + std::to_string(::geteuid()) +
                         " must be able to write to the directory: give it to that user, or choose another "
                         "with --socket-dir");
}

// Locks the file at `path`. Returns kFailedPrecondition, naming the holder, if it is locked, and a null
// descriptor if the file was replaced meanwhile.
Result<UniqueFd> TryLock(const std::string& path, const std::string& what) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return LockError(what + ": open its lock " + QuotePath(path), errno);
  // Any process that can open the file can lock it. Clients may enter the directory, so the file's mode must
  // exclude them.
  if (::fchmod(fd.get(), 0600) != 0)
    return ErrnoStatus(what + ": restrict the mode of " + QuotePath(path), errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(what + ": lock " + QuotePath(path), errno);
    return FailedPrecondition(what + ": " + HolderOf(fd.get()) + " serves it already");
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(what + ": stat " + QuotePath(path), errno);
  if (FileId::Of(path) != FileId{info.st_dev, info.st_ino}) return UniqueFd();
  return fd;
}

}  // namespace

std::optional<FileId> FileId::Of(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return std::nullopt;
  return FileId{info.st_dev, info.st_ino};
}

void UnlinkIfSame(const std::string& path, const std::optional<FileId>& file) {
  if (file && FileId::Of(path) == file) ::unlink(path.c_str());
}

Result<FileId> WriteNewFile(const std::string& path, std::string_view text) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus("replace " + QuotePath(path), errno);
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) return ErrnoStatus("create " + QuotePath(path), errno);
  struct stat info {};
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fstat(fd.get(), &info) != 0) {
    return ErrnoStatus("write " + QuotePath(path), errno);
  }
  return FileId{info.st_dev, info.st_ino};
}

Status SocketDir::Check(const std::string& directory) {
  const std::string what = "use the socket directory " + QuotePath(directory);
  if (!IsUtf8(directory)) return InvalidArgument(what + ": its path is not UTF-8, as clients need it");
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0) {
    const Status status = ErrnoStatus(
        what + " (create it, or choose another with --socket-dir; in a container, mount the host's)", errno);
    return InvalidArgument(status.message());
  }
  if (!S_ISDIR(info.st_mode)) return InvalidArgument(what + ": it is not a directory");
  if ((info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0) {
    return InvalidArgument(what + ": every user may write to it and could replace the sockets; chmod o-w it");
  }
  if (info.st_uid != 0 && info.st_uid != ::geteuid()) {
    const std::string user = std::to_string(::geteuid());
    return InvalidArgument(what + ": it belongs to user " + std::to_string(info.st_uid) +
                           ", who could replace the sockets, and this daemon is user " + user +
                           "; run it as that user (setpriv --reuid=" + std::to_string(info.st_uid) +
                           " --regid=" + std::to_string(info.st_gid) +
                           " --init-groups pinfeedd ..., or the service), or choose another directory with "
                           "--socket-dir");
  }
  const std::string longest = directory + "/lifeline.sock";
  if (longest.size() > kMaxSocketPath) {
    return InvalidArgument(what + ": " + QuotePath(longest) + " has " + std::to_string(longest.size()) +
                           " bytes, a socket's path can have " + std::to_string(kMaxSocketPath) +
                           "; choose a shorter socket_dir");
  }
  if (::faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    return LockError(what + ": write to it", errno);
  const std::string lock = directory + "/pinfeedd.lock";
  if (::faccessat(AT_FDCWD, lock.c_str(), R_OK | W_OK, AT_EACCESS) != 0 && errno != ENOENT)
    return LockError(what + ": open its lock " + QuotePath(lock), errno);
  return OkStatus();
}

Result<SocketDir> SocketDir::Lock(const std::string& directory, bool temporary) {
  RETURN_IF_ERROR(Check(directory));
  const std::string what = "use the socket directory " + QuotePath(directory);
  const std::string path = directory + "/pinfeedd.lock";
  UniqueFd fd;
  while (!fd) {
    ASSIGN_OR_RETURN(fd, TryLock(path, what));
  }
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(fd.get(), 0) != 0 ||
      ::pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return ErrnoStatus(what + ": write " + QuotePath(path), errno);
  }
  return SocketDir(directory, std::move(fd), temporary);
}

Status SocketDir::CheckUnserved() const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + kMaxExitTime;
  ucred holder{};
  while (true) {
    const std::optional<UniqueFd> connection = TryConnect(rpc_path());
    if (!connection) return OkStatus();
    socklen_t length = sizeof holder;
    if (!*connection || ::getsockopt(connection->get(), SOL_SOCKET, SO_PEERCRED, &holder, &length) != 0)
      break;
    if (Clock::now() >= end || !ClosesBy(end, *connection)) break;
    std::this_thread::sleep_for(kRetryInterval);
  }
  // The pid is 0 if unknown, as for a process in another container.
  const std::string who =
      holder.pid > 0 ? "the process with pid " + std::to_string(holder.pid) : "another process";
  return FailedPrecondition("use the socket directory " + QuotePath(directory_) + ": " + who +
                            " serves it already, on " + QuotePath(rpc_path()) +
                            ", though not with the lock that is there now: has " + QuotePath(lock_path()) +
                            " been removed? End that process first");
}

SocketDir::~SocketDir() {
  if (!lock_ || !temporary_) return;
  struct stat info {};
  if (::fstat(lock_.get(), &info) == 0) UnlinkIfSame(lock_path(), FileId{info.st_dev, info.st_ino});
  ::rmdir(directory_.c_str());  // fails, as it should, if the directory holds other files
}

}  // namespace pinfeed
