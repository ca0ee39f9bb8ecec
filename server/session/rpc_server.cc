// SPDX-License-Identifier: Apache-2.0
#include "server/session/rpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>

#include "server/session/service.h"

namespace pinfeed {
namespace {

constexpr int kMaxRequestBytes = 1 << 20;
constexpr int kMaxThreads = 64;
constexpr int kMaxStreamsAConnection = 32;
constexpr int kMaxIdleMs =
    10 * 60 * 1000;  // a connection without calls is closed; clients reconnect by themselves

}  // namespace

struct RpcServer::Server {
  std::unique_ptr<grpc::Server> grpc;
};

Result<std::unique_ptr<RpcServer>> RpcServer::Create(FeederService& service) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("pinfeed").SetMaxThreads(kMaxThreads));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsAConnection);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxIdleMs);
  builder.RegisterService(&service);
  auto server = std::make_unique<Server>();
  server->grpc = builder.BuildAndStart();
  if (server->grpc == nullptr)
    return Internal("start the gRPC server: gRPC gives no reason; its own log may");
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(server)));
}

RpcServer::RpcServer(std::unique_ptr<Server> server) : server_(std::move(server)) {}

RpcServer::~RpcServer() {
  Stop(std::chrono::milliseconds(0));
}

void RpcServer::Serve(UniqueFd connection) {
  grpc::AddInsecureChannelFromFd(server_->grpc.get(), connection.release());
}

void RpcServer::SetHealthy(bool healthy) {
  server_->grpc->GetHealthCheckService()->SetServingStatus(healthy);
}

void RpcServer::Stop(std::chrono::milliseconds grace) {
  if (server_->grpc == nullptr) return;
  server_->grpc->Shutdown(std::chrono::system_clock::now() + grace);
  server_->grpc->Wait();
  server_->grpc.reset();
}

}  // namespace pinfeed
