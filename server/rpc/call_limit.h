// SPDX-License-Identifier: Apache-2.0
// How many calls may be open on one connection and of one user, answered ones included that their client has
// not read.
// In: every call that gRPC begins. Out: connections with too many, told of and closed.
#pragma once

#include <grpcpp/support/server_interceptor.h>
#include <sys/types.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "common/sync.h"
#include "server/session/peer.h"
#include "server/telemetry/refusals.h"

namespace pinfeed {

// Purpose: bounds the memory of answers. A client that never confirms the server's settings is not held to
// its limit of streams, and gRPC keeps what is not read. Borrows: the registry and the refusals (outlive it
// and every call). Threads: any. Errors: none; a connection that goes above its bound, or above its user's,
// is counted and closed, unless it is one over TCP (of an operator with a listed certificate), of which gRPC
// gives no hold. Invariant: what is counted are the calls that gRPC has not let go of.
class CallLimit final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  struct Bounds {
    size_t connection = 0;
    size_t user = 0;
  };
  CallLimit(const PeerRegistry& peers, Refusals& refusals, Bounds bounds)
      : peers_(peers), refusals_(refusals), bounds_(bounds) {}

  // gRPC's: for each call, of which it owns the result.
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override
      PF_EXCLUDES(mutex_);

 private:
  class OpenCall;
  struct Caller {
    std::string connection;     // gRPC's name for it
    std::optional<uid_t> user;  // that it counts for: none over TCP
  };
  // How many calls are open with this one: of its connection, of its user.
  Bounds Add(Caller& caller) PF_EXCLUDES(mutex_);
  void Remove(const Caller& caller) PF_EXCLUDES(mutex_);

  const PeerRegistry& peers_;
  Refusals& refusals_;
  const Bounds bounds_;
  Mutex mutex_;
  std::map<std::string, size_t> of_connection_ PF_GUARDED_BY(mutex_);
  std::map<uid_t, size_t> of_user_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
