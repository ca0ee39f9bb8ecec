// SPDX-License-Identifier: Apache-2.0
// How many calls may be open on one connection, answered ones included that their client has not read.
// In: every call that gRPC begins. Out: connections with too many, told of and closed.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <cstddef>
#include <map>
#include <string>

#include "common/sync.h"
#include "server/session/peer.h"
#include "server/telemetry/refusals.h"

namespace pinfeed {

// Purpose: bounds the memory of answers. A client that never confirms the server's settings is not held to
// its limit of streams, and gRPC keeps what is not read. Borrows: the registry and the refusals (outlive it
// and every call). Threads: any. Errors: none; a connection above the bound is counted and closed, unless it
// is one over TCP (of an operator with a listed certificate), of which gRPC gives no hold. Invariant: a
// connection's count is that of its calls that gRPC has not let go of.
class CallLimit final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  CallLimit(const PeerRegistry& peers, Refusals& refusals, size_t most)
      : peers_(peers), refusals_(refusals), most_(most) {}

  // gRPC's: for each call, of which it owns the result.
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override
      PF_EXCLUDES(mutex_);

 private:
  class OpenCall;
  // The connection's calls with this one.
  size_t Add(const std::string& connection) PF_EXCLUDES(mutex_);
  void Remove(const std::string& connection) PF_EXCLUDES(mutex_);

  const PeerRegistry& peers_;
  Refusals& refusals_;
  const size_t most_;
  Mutex mutex_;
  std::map<std::string, size_t> open_ PF_GUARDED_BY(mutex_);  // by gRPC's name for the connection
};

}  // namespace pinfeed
