// SPDX-License-Identifier: Apache-2.0
// The optional TCP endpoint for operators on other hosts. In: connections of the network. Out: the same
// services that the Unix socket has, for certificates that AdminAccess lets in.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "server/net/admin_access.h"
#include "server/net/frame_guard.h"
#include "server/net/peer.h"
#include "server/net/refusals.h"
#include "server/net/tls_server.h"
#include "server/rpc/rpc_server.h"

namespace pinfeed {

// Purpose: a guard that speaks TLS, and a gRPC server behind it. Owns: both. Borrows: all it is given
// (outlive it). Threads: Start and Stop from the owner. Errors: Create's.
class AdminEndpoint {
 public:
  // `listen` is ADDRESS:PORT with a numeric address; port 0: any free one.
  static Result<std::unique_ptr<AdminEndpoint>> Create(const std::string& listen,
                                                       const RpcServer::Services& services,
                                                       const AdminAccess& access, PeerRegistry& connections,
                                                       Refusals& refusals);

  void Start() { guard_->Start(); }
  // Takes no more connections, then ends those there are; running calls have the time given. Idempotent.
  void Stop(std::chrono::milliseconds grace);
  uint16_t port() const { return port_; }

 private:
  explicit AdminEndpoint(const AdminAccess& access) : tls_(access) {}

  uint16_t port_ = 0;
  TlsServer tls_;
  std::unique_ptr<RpcServer> rpc_;
  std::unique_ptr<FrameGuard> guard_;
};

}  // namespace pinfeed
