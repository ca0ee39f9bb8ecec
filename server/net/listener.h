// SPDX-License-Identifier: Apache-2.0
// A listening socket: Unix, or TCP for admins. Out: connections from users who may connect, with their
// credentials.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/os/foreign_fds.h"
#include "common/os/tcp_address.h"
#include "server/net/peer.h"
#include "server/net/refusals.h"
#include "server/net/socket_dir.h"

namespace pinfeed {

struct ListenerOptions {
  uint32_t mode = 0660;
  std::optional<gid_t> group;
  std::function<bool(uid_t)> is_served;
};

// What to do when the daemon may not give its sockets to this group.
std::string GroupAdvice(gid_t group);

// Purpose: accepts without blocking; closes and counts connections of users who may not connect. Owns: the
// socket, and the file it created, which it unlinks. Borrows: the refusals. Threads: one at a time. Errors:
// see Accept.
class Listener {
 public:
  struct Connection {
    UniqueConnection fd;  // non-blocking, close-on-exec
    Peer peer;
  };

  // Creates a Unix socket of `type` SOCK_STREAM or SOCK_SEQPACKET. Replaces an existing file, so the caller
  // must hold the directory's lock.
  static Result<Listener> Create(const std::string& path, int type, ListenerOptions options,
                                 Refusals& refusals);
  // Takes over a listening socket from the service manager. It must be the socket at `path`. The file belongs
  // to the service manager and keeps its mode and group.
  static Result<Listener> Adopt(UniqueFd fd, const std::string& path, int type, ListenerOptions options,
                                Refusals& refusals);
  // Listens on TCP; `address` as for ListenTcp. Every connection is accepted, with the peer kRemoteUser.
  static Result<Listener> CreateTcp(const std::string& address, Refusals& refusals);
  Listener(Listener&& other) noexcept = default;
  Listener& operator=(Listener&& other) = delete;
  ~Listener();

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  // Precondition: a TCP socket.
  Result<uint16_t> port() const { return BoundPort(fd_); }

  // Accepts those that wait, `at_most` of them with those that are refused, so that a flood of either leaves
  // time for the caller's other work. Returns kResourceExhausted if one waits but no descriptor or memory is
  // left. That connection stays in the queue, so the caller must pause or its poll spins.
  Status Accept(int at_most, const std::function<void(Connection)>& take);

 private:
  Listener(UniqueFd fd, std::string path, ListenerOptions options, Refusals& refusals)
      : fd_(std::move(fd)), path_(std::move(path)), options_(std::move(options)), refusals_(&refusals) {}

  UniqueFd fd_;
  std::string path_;
  std::optional<FileId> file_ = FileId::Of(path_);  // unlinked at the end
  ListenerOptions options_;
  Refusals* refusals_;
};

}  // namespace pinfeed
