// SPDX-License-Identifier: Apache-2.0
// Who is behind a call. In: gRPC's context of it. Out: a process of this host, as the kernel says, or an
// admin from afar, as the certificate says.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <string>

#include "common/base/result.h"
#include "server/net/admin_access.h"
#include "server/net/peer.h"

namespace pinfeed {

struct Caller {
  Peer peer;          // kRemoteUser's, of an admin
  std::string admin;  // the name on the list; empty: a process of this host

  bool remote() const { return !admin.empty(); }
};

// "pid 12, uid 1000", "admin 'ops.example'".
std::string Describe(const Caller& caller);

// Purpose: finds them. Borrows: all it is given (outlive it). Threads: any. Errors: see Find.
class Callers {
 public:
  // `access` is null without a TCP endpoint.
  Callers(const PeerRegistry& peers, const AdminAccess* access) : peers_(peers), access_(access) {}

  // `what` is called, for the error: kPermissionDenied when the list has changed meanwhile, kInternal.
  Result<Caller> Find(const grpc::CallbackServerContext& context, const char* what) const;

 private:
  const PeerRegistry& peers_;
  const AdminAccess* const access_;
};

}  // namespace pinfeed
