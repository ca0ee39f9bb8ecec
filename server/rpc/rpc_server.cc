// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/rpc_server.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>

#include <utility>
#include <vector>

#include "common/log.h"
#include "common/log_pace.h"
#include "common/quote.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/call_limit.h"
#include "server/rpc/health_service.h"
#include "server/rpc/service.h"

namespace pinfeed {
namespace {

// The largest valid request has some 40 KiB. One that is only somewhat larger is told which field is at
// fault.
constexpr int kMaxRequestBytes = 1 << 20;
// For reflection alone: no other call holds a thread of gRPC's.
constexpr int kMaxThreads = 16;
constexpr int kMaxStreamsAConnection = 8;
// Of a client that was not told the number of streams yet, or does not keep to it.
constexpr size_t kMaxCallsAConnection = 4 * kMaxStreamsAConnection;
// Answers of up to 60 kB each are kept for who does not read them: of one user, 60 MB.
constexpr size_t kMaxCallsAUser = 1024;
// After its age a connection takes no new calls and is closed; those that run have the grace. Clients
// reconnect by themselves.
constexpr int kMaxAgeMs = 60 * 1000;
constexpr int kMaxAgeGraceMs = 10 * 60 * 1000;
// Of the network: for a handshake; without a call; and how soon a host that vanished amid one is noticed.
constexpr int kHandshakeMs = 5 * 1000;
constexpr int kMaxIdleMs = 30 * 1000;
constexpr int kKeepaliveMs = 30 * 1000;
constexpr int kKeepaliveTimeoutMs = 10 * 1000;

// gRPC would write to stderr by itself, which blocks when nobody reads there.
void LogFromGrpc(gpr_log_func_args* line) {
  if (line->severity == GPR_LOG_SEVERITY_ERROR) {
    static LogPace pace(5);
    if (const auto more = pace.Admit()) spdlog::warn("gRPC: {}{}", EscapeName(line->message), *more);
  } else {
    spdlog::debug("gRPC: {}", line->message);
  }
}

}  // namespace

struct RpcServer::Server {
  std::shared_ptr<grpc::ServerCredentials> credentials;                      // outlives the server
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;  // likewise; null: of this host
  std::unique_ptr<grpc::Server> grpc;
};

Result<std::unique_ptr<RpcServer>> RpcServer::Create(const Services& services,
                                                     const PeerRegistry& connections, Refusals& refusals) {
  gpr_set_log_function(&LogFromGrpc);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  return Start(builder, services, connections, refusals, std::make_unique<Server>());
}

Result<std::unique_ptr<RpcServer>> RpcServer::CreateForNetwork(
    const Services& services, const PeerRegistry& connections, Refusals& refusals,
    std::shared_ptr<grpc::ServerCredentials> credentials) {
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxIdleMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  auto server = std::make_unique<Server>();
  server->credentials = credentials;
  server->acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, std::move(credentials));
  return Start(builder, services, connections, refusals, std::move(server));
}

Result<std::unique_ptr<RpcServer>> RpcServer::Start(grpc::ServerBuilder& builder, const Services& services,
                                                    const PeerRegistry& connections, Refusals& refusals,
                                                    std::unique_ptr<Server> server) {
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("pinfeed").SetMaxThreads(kMaxThreads));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsAConnection);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kMaxAgeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kMaxAgeGraceMs);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<CallLimit>(
      connections, refusals, CallLimit::Bounds{kMaxCallsAConnection, kMaxCallsAUser}));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  builder.RegisterService(&services.feeder);
  builder.RegisterService(&services.admin);
  builder.RegisterService(&services.health);
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
  if (server_->acceptor == nullptr) {
    grpc::AddInsecureChannelFromFd(server_->grpc.get(), connection.release());
    return;
  }
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = connection.release();
  server_->acceptor->HandleNewConnection(&parameters);
}

void RpcServer::Stop(std::chrono::milliseconds grace) {
  if (server_->grpc == nullptr) return;
  server_->grpc->Shutdown(std::chrono::system_clock::now() + grace);
  server_->grpc->Wait();
  server_->grpc.reset();
}

}  // namespace pinfeed
