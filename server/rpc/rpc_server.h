// SPDX-License-Identifier: Apache-2.0
// The gRPC server around the services: health, reflection, limits; it listens nowhere and is given its
// connections by a FrameGuard, which has looked at what clients send.
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
// (outlives it). Threads: any. Errors: Create's.
class RpcServer {
 public:
  struct Services {
    FeederService& feeder;
    AdminService& admin;
    HealthService& health;
  };
  static Result<std::unique_ptr<RpcServer>> Create(const Services& services);
  // Ends connections without calls, and those whose host has vanished.
  static Result<std::unique_ptr<RpcServer>> CreateForNetwork(const Services& services);
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // `connection` is a non-blocking stream socket. Once Stop was called, it is closed.
  void Serve(UniqueFd connection) PF_EXCLUDES(mutex_);
  // Ends every call and connection; running calls have until the deadline. Idempotent.
  void Stop(std::chrono::milliseconds grace) PF_EXCLUDES(mutex_);

 private:
  explicit RpcServer(std::unique_ptr<grpc::Server> server);
  static Result<std::unique_ptr<RpcServer>> Start(grpc::ServerBuilder& builder, const Services& services);
  Mutex mutex_;
  std::unique_ptr<grpc::Server> server_ PF_GUARDED_BY(mutex_);  // null once it stops
};

}  // namespace pinfeed
