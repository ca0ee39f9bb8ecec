// SPDX-License-Identifier: Apache-2.0
// Who is at the other end of a connection, as the kernel says (SO_PEERCRED).
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/result.h"
#include "common/sync.h"

namespace pinfeed {

struct Peer {
  pid_t pid = 0;  // 0: not visible from this PID namespace
  uid_t uid = 0;
  gid_t gid = 0;
  bool operator==(const Peer&) const = default;
};

// No user of this host: what the kernel says of connections by TCP.
inline constexpr uid_t kRemoteUser = static_cast<uid_t>(-1);

// "pid 12, uid 1000".
std::string Describe(const Peer& peer);

// kFailedPrecondition when the process is in another PID namespace than this one. `proc` stands in for /proc
// in tests.
Status CheckSamePidNamespace(pid_t pid, const std::string& proc = "/proc");

// Purpose: the credentials behind each connection given to gRPC, by its descriptor number: gRPC's peer() is
// "fd:N". Threads: any. Errors: none. Invariant: a call finds its own connection's entry. A number is entered
// before gRPC gets the descriptor, and gRPC keeps the descriptor open until the last call over it is done
// (PeerRegistryTest holds it to that), so the number is not given out again before.
class PeerRegistry {
 public:
  void Set(int fd, const Peer& peer) PF_EXCLUDES(mutex_);
  // `grpc_peer` as ServerContext::peer() gives it; nothing when it is none of ours.
  std::optional<Peer> Find(std::string_view grpc_peer) const PF_EXCLUDES(mutex_);
  // Hangs up on it. Precondition: one of its calls is open, by which gRPC keeps the descriptor open, too.
  void Disconnect(std::string_view grpc_peer) const PF_EXCLUDES(mutex_);
  // How many connections of the user are open; forgets those that are not. By the thread that calls Set.
  size_t CountOpen(uid_t uid) PF_EXCLUDES(mutex_);

 private:
  struct Entry {
    Peer peer;
    ino_t socket = 0;  // tells whether the number is still this connection's
  };
  mutable Mutex mutex_;
  std::map<int, Entry> peers_ PF_GUARDED_BY(mutex_);  // bounded by the limit on descriptors
};

}  // namespace pinfeed
