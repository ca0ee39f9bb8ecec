// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_limit.h"

#include <grpcpp/server_context.h>

#include <optional>
#include <string>
#include <utility>

namespace pinfeed {

// Purpose: one call, from its beginning until gRPC has let go of it.
class CallLimit::OpenCall final : public grpc::experimental::Interceptor {
 public:
  OpenCall(CallLimit& limit, Caller caller) : limit_(limit), caller_(std::move(caller)) {}
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;
  ~OpenCall() override { limit_.Remove(caller_); }
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override { methods->Proceed(); }

 private:
  CallLimit& limit_;
  const Caller caller_;
};

grpc::experimental::Interceptor* CallLimit::CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) {
  const std::string connection = info->server_context()->peer();
  const std::optional<Peer> peer = peers_.Find(connection);
  Caller caller{connection, peer ? std::optional(peer->uid) : std::nullopt};
  const Bounds open = Add(caller);
  // Once for a connection; a user's bound ends each that goes above it.
  const bool too_many = open.connection == bounds_.connection + 1;
  if (too_many || open.user > bounds_.user) {
    const std::string whose = too_many
                                  ? std::to_string(bounds_.connection) + " calls are open on one connection"
                                  : std::to_string(bounds_.user) + " calls are open of one user";
    refusals_.CountRequest(
        peer ? Describe(*peer) : connection,
        ResourceExhausted(whose + ", answered ones included that are not read" +
                          (peer ? "; this connection is closed" : "; over TCP it cannot be closed")));
    peers_.Disconnect(connection);
  }
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): gRPC owns it
  return new OpenCall(*this, std::move(caller));
}

CallLimit::Bounds CallLimit::Add(Caller& caller) {
  const MutexLock lock(mutex_);
  Bounds open;
  open.connection = ++of_connection_[caller.connection];
  // What still comes of a connection that is closed does not count against its user's others.
  if (open.connection > bounds_.connection) caller.user.reset();
  if (caller.user) open.user = ++of_user_[*caller.user];
  return open;
}

void CallLimit::Remove(const Caller& caller) {
  const auto drop = [](auto& counts, const auto& key) {
    const auto found = counts.find(key);
    if (--found->second == 0) counts.erase(found);
  };
  const MutexLock lock(mutex_);
  drop(of_connection_, caller.connection);
  if (caller.user) drop(of_user_, *caller.user);
}

}  // namespace pinfeed
