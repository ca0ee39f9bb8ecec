// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/rpc_server.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>

#include <utility>

#include "common/base/log.h"
#include "common/base/log_pace.h"
#include "common/base/quote.h"
#include "common/os/spare_threads.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/health_service.h"
#include "server/rpc/service.h"

namespace pinfeed {
namespace {

// Usual requests have a few KiB. One of many small parts takes 45 times its bytes when it is parsed.
constexpr int kMaxRequestBytes = 256 << 10;
// Used by reflection only: no other call blocks a thread of gRPC's.
constexpr int kMaxThreads = 16;
constexpr int kMaxStreamsPerConnection = 8;
// A connection of this age takes no new calls and closes; running calls have the grace period. Clients
// reconnect by themselves.
constexpr int kMaxAgeMs = 60 * 1000;
constexpr int kMaxAgeGraceMs = 10 * 60 * 1000;
// For TCP connections: closed when idle for this long; a vanished host is noticed by keepalive.
constexpr int kMaxIdleMs = 30 * 1000;
constexpr int kKeepaliveMs = 30 * 1000;
constexpr int kKeepaliveTimeoutMs = 10 * 1000;

// gRPC would otherwise write to stderr, which blocks if nobody reads it.
void LogFromGrpc(gpr_log_func_args* line) {
  if (line->severity == GPR_LOG_SEVERITY_ERROR) {
    static LogPace pace(5);
    if (const auto more = pace.Admit()) spdlog::warn("gRPC: {}{}", EscapeName(line->message), *more);
  } else {
    spdlog::debug("gRPC: {}", line->message);
  }
}

}  // namespace

Result<std::unique_ptr<RpcServer>> RpcServer::Create(const Services& services) {
  gpr_set_log_function(&LogFromGrpc);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  return Start(builder, services);
}

Result<std::unique_ptr<RpcServer>> RpcServer::CreateForNetwork(const Services& services) {
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxIdleMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  return Start(builder, services);
}

Result<std::unique_ptr<RpcServer>> RpcServer::Start(grpc::ServerBuilder& builder, const Services& services) {
  RETURN_IF_ERROR(CheckSpareThreads("start the gRPC server"));
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("pinfeed").SetMaxThreads(kMaxThreads));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  // Flow-control probing would raise the frame limit, which the guard keeps at HTTP/2's default.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kMaxAgeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kMaxAgeGraceMs);
  builder.RegisterService(&services.feeder);
  builder.RegisterService(&services.admin);
  builder.RegisterService(&services.health);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return Internal("start the gRPC server: gRPC gives no reason; its own log may");
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(server)));
}

RpcServer::RpcServer(std::unique_ptr<grpc::Server> server) : server_(std::move(server)) {}

RpcServer::~RpcServer() {
  Stop(std::chrono::milliseconds(0));
}

void RpcServer::Serve(UniqueFd connection) {
  const MutexLock lock(mutex_);
  if (server_ != nullptr) grpc::AddInsecureChannelFromFd(server_.get(), connection.release());
}

void RpcServer::Stop(std::chrono::milliseconds grace) {
  std::unique_ptr<grpc::Server> stopping;
  {
    const MutexLock lock(mutex_);
    stopping = std::move(server_);
  }
  if (stopping == nullptr) return;
  stopping->Shutdown(std::chrono::system_clock::now() + grace);
  stopping->Wait();
}

}  // namespace pinfeed
