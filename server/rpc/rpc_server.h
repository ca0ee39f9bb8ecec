// SPDX-License-Identifier: Apache-2.0
// The gRPC server with its services, health checks, reflection and limits. It listens on no socket: a
// FrameGuard, which checks what clients send, hands it connections.
#pragma once

#include <chrono>
#include <memory>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/base/unique_handle.h"

namespace grpc {
class Server;
class ServerBuilder;
}  // namespace grpc

namespace pinfeed {

class AdminService;
class FeederService;
class HealthService;

// Purpose: serves the connections it is given. Owns: the gRPC server. Borrows: all that Create is given
// (outlive it). Threads: any. Errors: Create's.
class RpcServer {
 public:
  struct Services {
    FeederService& feeder;
    AdminService& admin;
    HealthService& health;
  };
  static Result<std::unique_ptr<RpcServer>> Create(const Services& services);
  // Closes idle connections, and those whose host has vanished.
  static Result<std::unique_ptr<RpcServer>> CreateForNetwork(const Services& services);
  ~RpcServer();

  // `connection` is a non-blocking stream socket. Closed at once after Stop.
  void Serve(UniqueFd connection) PF_EXCLUDES(mutex_);
  // Ends every call and connection. Running calls may continue until the deadline. Idempotent.
  void Stop(std::chrono::milliseconds grace) PF_EXCLUDES(mutex_);

 private:
  explicit RpcServer(std::unique_ptr<grpc::Server> server);
  static Result<std::unique_ptr<RpcServer>> Start(grpc::ServerBuilder& builder, const Services& services);
  Mutex mutex_;
  std::unique_ptr<grpc::Server> server_ PF_GUARDED_BY(mutex_);  // null once stopping
};

}  // namespace pinfeed
