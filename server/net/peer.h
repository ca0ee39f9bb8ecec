// SPDX-License-Identifier: Apache-2.0
// The process at the other end of a connection, as reported by the kernel (SO_PEERCRED).
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

struct Peer {
  pid_t pid = 0;  // 0: not visible from this PID namespace
  uid_t uid = 0;
  gid_t gid = 0;
  bool operator==(const Peer&) const = default;
};

// Not a user of this host: what the kernel reports for TCP connections.
inline constexpr uid_t kRemoteUser = static_cast<uid_t>(-1);

// Returns "pid 12, uid 1000".
std::string Describe(const Peer& peer);

// Returns a descriptor that becomes readable when the process has ended. SO_PEERPIDFD refers to the process
// that connected. Before Linux 6.5, the pid has to suffice. It could only be reused if that process had
// ended, and then the connection has hung up.
Result<UniqueFd> OpenPeerPidfd(int connection, pid_t pid);

// Returns kFailedPrecondition if the process is in another PID namespace than this one. Tests replace `proc`.
Status CheckSamePidNamespace(pid_t pid, const std::string& proc = "/proc");

// Purpose: finds the credentials behind a gRPC call. Connections are keyed by the number of gRPC's
// descriptor, which gRPC shows as the peer "fd:N". Threads: any. Errors: none. Invariant: a call finds the
// entry of its own connection. The entry is made before gRPC gets the descriptor. gRPC keeps the descriptor
// open until the connection's last call is done (checked by PeerRegistryTest), so the kernel cannot reuse the
// number earlier.
class PeerRegistry {
 public:
  struct Connection {
    Peer peer;
    std::vector<std::string> names;  // from the certificate, for kRemoteUser
  };
  void Set(int fd, const Peer& peer, std::vector<std::string> names = {}) PF_EXCLUDES(mutex_);
  // `grpc_peer` is ServerContext::peer(). Returns nothing for an unknown connection.
  std::optional<Connection> Find(std::string_view grpc_peer) const PF_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::map<int, Connection> connections_ PF_GUARDED_BY(mutex_);  // bounded by the limit on descriptors
};

}  // namespace pinfeed
