// SPDX-License-Identifier: Apache-2.0
// The gRPC face for operators: pinfeed.v1.Admin over the session layer.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "pinfeed/v1/admin.grpc.pb.h"
#include "server/config/reload.h"
#include "server/net/refusals.h"
#include "server/rpc/call_queue.h"
#include "server/rpc/callers.h"
#include "server/rpc/trace_stream.h"
#include "server/session/feed_table.h"
#include "server/session/lifeline.h"
#include "server/session/session_table.h"
#include "server/trace/tracer.h"

namespace pinfeed {

// What the daemon as a whole does for its operators. `who` is for the log. Any thread may call them.
struct OperatorCalls {
  using OnReloaded = std::function<void(const Result<ReloadReport>&)>;
  std::function<Status(const std::string& who)> drain;
  // `done` is called once, later and from another thread, or at once.
  std::function<void(const std::string& who, const OnReloaded& done)> reload;
  std::function<std::chrono::milliseconds()> drain_timeout;
};

// Purpose: decides who may, and does it. Owns: the thread of the one trace that may run. Borrows: all it is
// given (outlive it). Threads: gRPC's, any number at once; none is held by a client that does not read.
// Errors: our codes are gRPC's. Invariant: every call is finished; outlives the gRPC server.
class AdminService final : public v1::Admin::CallbackService {
 public:
  struct Parts {
    const Callers& callers;
    FeedTable& feeds;
    const SessionTable& sessions;
    LifelineServer& lifelines;
    Refusals& refusals;
    Tracer& tracer;
    OperatorCalls operations;
    uid_t own_uid;  // the daemon's
  };
  explicit AdminService(Parts parts)
      : parts_(std::move(parts)), calls_({.threads = 1, .running_a_user = 1, .waiting_a_user = 1}, "call") {}

  grpc::ServerWriteReactor<v1::TraceResponse>* Trace(grpc::CallbackServerContext* context,
                                                     const v1::TraceRequest* request) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* Evict(grpc::CallbackServerContext* context, const v1::EvictRequest* request,
                                  v1::EvictResponse* response) override;
  grpc::ServerUnaryReactor* Reload(grpc::CallbackServerContext* context, const v1::ReloadRequest* request,
                                   v1::ReloadResponse* response) override;
  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const v1::SetLogLevelRequest* request,
                                        v1::SetLogLevelResponse* response) override;

 private:
  // Whose feeds the caller may see; nothing: all.
  std::optional<uid_t> ScopeOf(const Caller& caller) const;
  // Who calls; kPermissionDenied, counted as a refusal, unless it is root, the daemon's own user, or an
  // admin.
  Result<Caller> FindOperator(const grpc::CallbackServerContext& context, const char* what) const;
  // The one trace that is on, or about to be: whose, and how to make it end.
  struct Turn {
    uint64_t number = 0;
    std::optional<uid_t> scope;
    TraceStream* stream = nullptr;
  };
  // The turn's number. A user that is no operator has kMaxUserSeconds and then a pause as long as the trace
  // was; an operator's trace ends such a user's. kResourceExhausted says what to wait for.
  Result<uint64_t> TakeTurn(std::optional<uid_t> scope, double seconds, TraceStream& stream)
      PF_EXCLUDES(mutex_);
  void EndTurn(uint64_t number, std::optional<uid_t> scope, std::chrono::steady_clock::time_point began)
      PF_EXCLUDES(mutex_);
  // Sees to it that the trace is run, or says why not.
  Status BeginTrace(const grpc::CallbackServerContext& context, const v1::TraceRequest& request,
                    TraceStream& stream);
  // What the caller is told at the end.
  Status RunTrace(TraceStream& stream, Tracer::Recording& recording, std::optional<uid_t> scope,
                  double seconds, uint64_t max_spans);

  const Parts parts_;
  Mutex mutex_;
  uint64_t turns_ PF_GUARDED_BY(mutex_) = 0;
  std::optional<Turn> turn_ PF_GUARDED_BY(mutex_);
  // Until when a user pauses; what is past is dropped.
  std::map<uid_t, std::chrono::steady_clock::time_point> pauses_ PF_GUARDED_BY(mutex_);
  CallQueue calls_;
};

}  // namespace pinfeed
