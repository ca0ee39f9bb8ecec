// SPDX-License-Identifier: Apache-2.0
// The optional TCP port for operators on other hosts. In: connections from the network. Out: the services of
// the Unix socket, for clients whose certificate AdminAccess admits.
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

// Purpose: a frame guard that speaks TLS, with a gRPC server behind it. Owns: both. Borrows: all it is given
// (outlive it). Threads: Start and Stop from the owner. Errors: Create's.
class AdminEndpoint {
 public:
  // `listen` is ADDRESS:PORT with a numeric address. Port 0 chooses any free port.
  static Result<std::unique_ptr<AdminEndpoint>> Create(const std::string& listen,
                                                       const RpcServer::Services& services,
                                                       const AdminAccess& access, PeerRegistry& connections,
                                                       Refusals& refusals);

  void Start() { guard_->Start(); }
  // Accepts no more connections and ends the open ones. Running calls may continue until the deadline.
  // Idempotent.
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
