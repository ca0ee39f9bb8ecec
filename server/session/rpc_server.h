// SPDX-License-Identifier: Apache-2.0
// The gRPC server around the services: health, reflection, limits; it listens nowhere and is given its
// connections.
#pragma once

#include <chrono>
#include <memory>

#include "common/result.h"
#include "common/unique_handle.h"

namespace pinfeed {

class AdminService;
class FeederService;
class HealthService;
class PeerRegistry;
class Refusals;

// Purpose: serves the connections it is given. Owns: the gRPC server. Borrows: all that Create is given
// (outlives it). Threads: any. Errors: Create's.
class RpcServer {
 public:
  static Result<std::unique_ptr<RpcServer>> Create(FeederService& feeder, AdminService& admin,
                                                   HealthService& health, const PeerRegistry& peers,
                                                   Refusals& refusals);
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // `connection` is a non-blocking stream socket.
  void Serve(UniqueFd connection);
  // Ends every call and connection; running calls have until the deadline. Idempotent.
  void Stop(std::chrono::milliseconds grace);

 private:
  struct Server;  // keeps gRPC out of this header
  explicit RpcServer(std::unique_ptr<Server> server);
  std::unique_ptr<Server> server_;
};

}  // namespace pinfeed
