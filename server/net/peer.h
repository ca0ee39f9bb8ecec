// SPDX-License-Identifier: Apache-2.0
// Who is at the other end of a connection, as the kernel says (SO_PEERCRED).
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"

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

// Purpose: the credentials behind each connection given to gRPC, by the number of gRPC's descriptor: its
// peer() is "fd:N". Threads: any. Errors: none. Invariant: a call finds its own connection's entry. A number
// is entered before gRPC gets the descriptor, and gRPC keeps the descriptor open until the last call over it
// is done (PeerRegistryTest holds it to that), so the number is not given out again before.
class PeerRegistry {
 public:
  struct Connection {
    Peer peer;
    std::vector<std::string> names;  // of the certificate, of kRemoteUser
  };
  void Set(int fd, const Peer& peer, std::vector<std::string> names = {}) PF_EXCLUDES(mutex_);
  // `grpc_peer` as ServerContext::peer() gives it; nothing when it is none of ours.
  std::optional<Connection> Find(std::string_view grpc_peer) const PF_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::map<int, Connection> connections_ PF_GUARDED_BY(mutex_);  // bounded by the limit on descriptors
};

}  // namespace pinfeed
