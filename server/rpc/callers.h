// SPDX-License-Identifier: Apache-2.0
// Identifies the caller of a gRPC call. In: gRPC's context of the call. Out: a process of this host, as named
// by the kernel, or a remote admin, as named by its certificate.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <string>

#include "common/base/result.h"
#include "server/net/admin_access.h"
#include "server/net/peer.h"

namespace pinfeed {

struct Caller {
  Peer peer;          // kRemoteUser for an admin
  std::string admin;  // the listed name; empty for a process of this host

  bool remote() const { return !admin.empty(); }
};

// Returns "pid 12, uid 1000" or "admin 'ops.example'".
std::string Describe(const Caller& caller);

// Purpose: identifies callers. Borrows: all it is given (outlive it). Threads: any. Errors: see Find.
class Callers {
 public:
  // `access` is null without a TCP port.
  Callers(const PeerRegistry& peers, const AdminAccess* access) : peers_(peers), access_(access) {}

  // `what` names the call in errors. Returns kPermissionDenied if the certificate is no longer on the
  // allow-list, kInternal if the connection is unknown.
  Result<Caller> Find(const grpc::CallbackServerContext& context, const char* what) const;

 private:
  const PeerRegistry& peers_;
  const AdminAccess* const access_;
};

}  // namespace pinfeed
