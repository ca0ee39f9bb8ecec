// SPDX-License-Identifier: Apache-2.0
#include "server/net/listener.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/quote.h"
#include "common/os/unix_address.h"
#include "server/net/descriptor_room.h"

namespace pinfeed {
namespace {

constexpr int kBacklog = 1024;

Result<Peer> PeerOf(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return ErrnoStatus("read the credentials of a connection", errno);
  // For TCP the kernel reports pid 0 and kRemoteUser.
  return Peer{credentials.pid, credentials.uid, credentials.gid};
}

}  // namespace

std::string GroupAdvice(gid_t group) {
  return "user " + std::to_string(::geteuid()) + " is not in group " + std::to_string(group) +
         ": add it (usermod -aG; for a service SupplementaryGroups= too), or leave socket_group out and let "
         "those who are to connect join the daemon's own group";
}

Result<Listener> Listener::Create(const std::string& path, int type, ListenerOptions options,
                                  Refusals& refusals) {
  const std::string what = "listen on " + QuotePath(path);
  if (path.size() > kMaxSocketPath) {
    return InvalidArgument(what + ": the path has " + std::to_string(path.size()) +
                           " bytes, a socket's can have " + std::to_string(kMaxSocketPath) +
                           "; choose a shorter socket_dir");
  }
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(what, errno);
  RefuseForeignFds(fd.get());
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return ErrnoStatus("remove the old socket " + QuotePath(path), errno);
  if (AtSocketPath(::bind, fd.get(), path) != 0) return ErrnoStatus(what, errno);
  // Unlinks the file if a later step fails.
  Listener listener(std::move(fd), path, std::move(options), refusals);
  // Nobody can connect before listen, so mode and group are set in time.
  if (listener.options_.group &&
      ::chown(path.c_str(), static_cast<uid_t>(-1), *listener.options_.group) != 0) {
    const gid_t group = *listener.options_.group;
    const Status status =
        ErrnoStatus("give " + QuotePath(path) + " to group " + std::to_string(group), errno);
    return status.native_error() == EPERM ? InvalidArgument(status.message() + "; " + GroupAdvice(group))
                                          : status;
  }
  if (::chmod(path.c_str(), listener.options_.mode) != 0)
    return ErrnoStatus("set the mode of " + QuotePath(path), errno);
  if (::listen(listener.fd_.get(), kBacklog) != 0) return ErrnoStatus(what, errno);
  return listener;
}

Result<Listener> Listener::Adopt(UniqueFd fd, const std::string& path, int type, ListenerOptions options,
                                 Refusals& refusals) {
  const std::string what = "take over the socket " + QuotePath(path) + " from the service manager";
  const auto option = [&](int name) {
    int value = -1;
    socklen_t length = sizeof value;
    return ::getsockopt(fd.get(), SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
  };
  if (option(SO_DOMAIN) != AF_UNIX || option(SO_TYPE) != type || option(SO_ACCEPTCONN) != 1) {
    return InvalidArgument(what + ": it is no listening Unix socket of the type wanted; its unit needs " +
                           (type == SOCK_STREAM ? "ListenStream=" : "ListenSequentialPacket=") + path);
  }
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return ErrnoStatus(what, errno);
  const std::string bound(address.sun_path, ::strnlen(address.sun_path, sizeof address.sun_path));
  if (FileId::Of(bound) != FileId::Of(path) || !FileId::Of(path)) {
    return InvalidArgument(what + ": it listens on " + QuotePath(bound) +
                           "; let the socket unit and socket_dir name one directory");
  }
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0) return ErrnoStatus(what, errno);
  RefuseForeignFds(fd.get());
  Listener listener(std::move(fd), path, std::move(options), refusals);
  listener.file_.reset();
  return listener;
}

Result<Listener> Listener::CreateTcp(const std::string& address, Refusals& refusals) {
  ASSIGN_OR_RETURN(UniqueFd fd, ListenTcp(address, kBacklog));
  Listener listener(std::move(fd), address, {0, std::nullopt, [](uid_t) { return true; }}, refusals);
  listener.file_.reset();
  return listener;
}

Listener::~Listener() {
  if (fd_) UnlinkIfSame(path_, file_);
}

Status Listener::Accept(int at_most, const std::function<void(Connection)>& take) {
  for (int round = 0; round < at_most; ++round) {
    // Before it is accepted, so that it waits for the next try.
    if (NextIsLeftToFiles(fd_.get())) {
      const std::string why =
          "accept on " + path_ + ": the last descriptors are left to the files of samples";
      refusals_->Count(Refusal::kDescriptors, why);
      return ResourceExhausted(why);
    }
    UniqueConnection fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      const int error = errno;
      refusals_->Count(
          Refusal::kDescriptors,
          "accept on " + path_ + ": " + std::strerror(error));  // NOLINT(concurrency-mt-unsafe): glibc's is
      return Status(Code::kResourceExhausted, "accept on " + path_, error);
    }
    const Result<Peer> peer = PeerOf(fd.get());
    if (!peer.ok()) continue;  // the peer is already gone
    if (options_.is_served(peer->uid)) {
      take({std::move(fd), *peer});
    } else {
      refusals_->Count(Refusal::kUid, "a connection to " + path_ + " from " + Describe(*peer) +
                                          ": this user is not in allowed_uids");
    }
  }
  return OkStatus();
}

}  // namespace pinfeed
