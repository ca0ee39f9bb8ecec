// SPDX-License-Identifier: Apache-2.0
#include "server/session/call_limit.h"

#include <grpcpp/server_context.h>

#include <optional>
#include <string>
#include <utility>

namespace pinfeed {

// Purpose: one call, from its beginning until gRPC has let go of it.
class CallLimit::OpenCall final : public grpc::experimental::Interceptor {
 public:
  OpenCall(CallLimit& limit, std::string connection) : limit_(limit), connection_(std::move(connection)) {}
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;
  ~OpenCall() override { limit_.Remove(connection_); }
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override { methods->Proceed(); }

 private:
  CallLimit& limit_;
  const std::string connection_;
};

grpc::experimental::Interceptor* CallLimit::CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) {
  std::string connection = info->server_context()->peer();
  if (Add(connection) == most_ + 1) {
    const std::optional<Peer> peer = peers_.Find(connection);
    refusals_.CountRequest(
        peer ? Describe(*peer) : connection,
        ResourceExhausted(std::to_string(most_) +
                          " calls are open on one connection, answered ones included that it does not read" +
                          (peer ? "; it is closed" : "; over TCP it cannot be closed")));
    peers_.Disconnect(connection);
  }
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): gRPC owns it
  return new OpenCall(*this, std::move(connection));
}

size_t CallLimit::Add(const std::string& connection) {
  const MutexLock lock(mutex_);
  return ++open_[connection];
}

void CallLimit::Remove(const std::string& connection) {
  const MutexLock lock(mutex_);
  const auto found = open_.find(connection);
  if (--found->second == 0) open_.erase(found);
}

}  // namespace pinfeed
