// SPDX-License-Identifier: Apache-2.0
// A listening socket: a Unix one or, for admins, one of TCP. Out: connections of users that are served, with
// their credentials.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
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

// What to do when this process may not give its sockets to the group.
std::string GroupAdvice(gid_t group);

// Purpose: accepts without blocking; closes and counts what comes from users that are not served. Owns: the
// socket, and its file, if it made it, which it unlinks. Borrows: the refusals. Threads: one at a time.
// Errors: see Accept.
class Listener {
 public:
  struct Connection {
    UniqueFd fd;  // non-blocking, close-on-exec
    Peer peer;
  };

  // `type` is SOCK_STREAM or SOCK_SEQPACKET. Removes a file that is there already: only while holding the
  // directory's lock.
  static Result<Listener> Create(const std::string& path, int type, ListenerOptions options,
                                 Refusals& refusals);
  // Of a socket that listens already, made by the service manager, whose the file is: it stays, with its mode
  // and group. It must be the one at `path`.
  static Result<Listener> Adopt(UniqueFd fd, const std::string& path, int type, ListenerOptions options,
                                Refusals& refusals);
  // Of TCP, `address` as for ListenTcp. Its connections are kRemoteUser's, all of which are served.
  static Result<Listener> CreateTcp(const std::string& address, Refusals& refusals);
  Listener(Listener&& other) noexcept = default;
  Listener& operator=(Listener&& other) = delete;
  ~Listener();

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  // Of TCP.
  Result<uint16_t> port() const { return BoundPort(fd_); }

  // Nothing when no connection waits. kResourceExhausted when there is one but no descriptor or memory for
  // it: it stays in the queue, so the caller must pause, or its poll spins.
  Result<std::optional<Connection>> Accept();

 private:
  Listener(UniqueFd fd, std::string path, ListenerOptions options, Refusals& refusals)
      : fd_(std::move(fd)), path_(std::move(path)), options_(std::move(options)), refusals_(&refusals) {}

  UniqueFd fd_;
  std::string path_;
  std::optional<FileId> file_ = FileId::Of(path_);  // just bound
  ListenerOptions options_;
  Refusals* refusals_;
};

}  // namespace pinfeed
