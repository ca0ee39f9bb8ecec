// SPDX-License-Identifier: Apache-2.0
// The gRPC server around the services: health, reflection, limits; it listens nowhere and is given its
// connections: those of this host as they are, those of the network to be spoken to over TLS.
#pragma once

#include <chrono>
#include <memory>

#include "common/result.h"
#include "common/unique_handle.h"

namespace grpc {
class ServerBuilder;
class ServerCredentials;
}  // namespace grpc

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
  struct Services {
    FeederService& feeder;
    AdminService& admin;
    HealthService& health;
  };
  // `connections`: what is served, by whom it is from.
  static Result<std::unique_ptr<RpcServer>> Create(const Services& services, const PeerRegistry& connections,
                                                   Refusals& refusals);
  // With limits for strangers, who are known only once the handshake is over.
  static Result<std::unique_ptr<RpcServer>> CreateForNetwork(
      const Services& services, const PeerRegistry& connections, Refusals& refusals,
      std::shared_ptr<grpc::ServerCredentials> credentials);
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // `connection` is a non-blocking stream socket; of TCP, after CreateForNetwork.
  void Serve(UniqueFd connection);
  // Ends every call and connection; running calls have until the deadline. Idempotent.
  void Stop(std::chrono::milliseconds grace);

 private:
  struct Server;  // keeps gRPC out of this header
  explicit RpcServer(std::unique_ptr<Server> server);
  static Result<std::unique_ptr<RpcServer>> Start(grpc::ServerBuilder& builder, const Services& services,
                                                  const PeerRegistry& connections, Refusals& refusals,
                                                  std::unique_ptr<Server> server);
  std::unique_ptr<Server> server_;
};

}  // namespace pinfeed
