// SPDX-License-Identifier: Apache-2.0
// Who is at the other end of a connection, as the kernel says (SO_PEERCRED).
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/sync.h"

namespace pinfeed {

struct Peer {
  pid_t pid = 0;  // 0: not visible from this PID namespace
  uid_t uid = 0;
  gid_t gid = 0;
  bool operator==(const Peer&) const = default;
};

// "pid 12, uid 1000".
std::string Describe(const Peer& peer);

// Purpose: the credentials behind each connection given to gRPC, by its descriptor number: gRPC's peer() is
// "fd:N". Threads: any. Errors: none. Invariant: a number is entered before gRPC gets the descriptor, so a
// call never finds an older connection's entry. What a call can find is a *newer* one's, when its own
// connection was closed and the number given out again meanwhile; the answer of such a call reaches nobody.
class PeerRegistry {
 public:
  void Set(int fd, const Peer& peer) PF_EXCLUDES(mutex_);
  // `grpc_peer` as ServerContext::peer() gives it; nothing when it is none of ours.
  std::optional<Peer> Find(std::string_view grpc_peer) const PF_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::map<int, Peer> peers_ PF_GUARDED_BY(mutex_);  // bounded by the limit on descriptors
};

}  // namespace pinfeed
