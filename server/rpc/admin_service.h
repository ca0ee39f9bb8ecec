// SPDX-License-Identifier: Apache-2.0
// The gRPC service for operators: pinfeed.v1.Admin.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

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

// Operations on the whole daemon. `who` is for the log. Callable from any thread.
struct OperatorCalls {
  using OnReloaded = std::function<void(const Result<ReloadReport>&)>;
  std::function<Status(const std::string& who)> drain;
  // Calls `done` once, either at once or later from another thread.
  std::function<void(const std::string& who, const OnReloaded& done)> reload;
  std::function<std::chrono::milliseconds()> drain_timeout;
  // Returns the number of images and their bytes. May take long. kFailedPrecondition without a cache.
  std::function<Result<std::pair<uint64_t, uint64_t>>()> drop_cache;
};

// Purpose: checks who may call, and carries out the call. Owns: the thread of the one trace that may run, and
// the one that drops the cache. Borrows: all it is given (outlive it). Threads: gRPC's, any number at once. A
// client that does not read blocks none of them. Errors: our codes are gRPC's. Invariant: every call is
// finished; outlives the gRPC server.
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
    uid_t own_uid;  // of the daemon's user
  };
  explicit AdminService(Parts parts)
      : parts_(std::move(parts)),
        calls_({.threads = 1, .running_a_user = 1, .waiting_a_user = 1}, "call"),
        drops_({.threads = 1, .running_a_user = 1, .waiting_a_user = 1}, "drop") {}

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

  grpc::ServerUnaryReactor* DropCache(grpc::CallbackServerContext* context,
                                      const v1::DropCacheRequest* request,
                                      v1::DropCacheResponse* response) override;

 private:
  // The user whose feeds the caller may see; nothing: those of all users.
  std::optional<uid_t> ScopeOf(const Caller& caller) const;
  // Counts and logs an error as a refusal of the caller.
  void CountRefusal(const grpc::CallbackServerContext& context, const Status& error) const;
  // Ends a call. An error is counted as a refusal.
  grpc::ServerUnaryReactor* Finish(const grpc::CallbackServerContext& context,
                                   grpc::ServerUnaryReactor& reactor, const Status& status) const;
  // Returns the caller if it is root, the daemon's user or an admin; otherwise kPermissionDenied.
  Result<Caller> FindOperator(const grpc::CallbackServerContext& context, const char* what) const;
  // The one trace that runs or is about to: its scope, and its stream to interrupt.
  struct ActiveTrace {
    uint64_t number = 0;
    std::optional<uid_t> scope;
    TraceStream* stream = nullptr;
  };
  // Reserves the one trace and returns its number. A user who is not an operator has kMaxUserSeconds, then
  // pauses for as long as the trace took. An operator's trace ends such a user's trace. kResourceExhausted
  // says what to wait for.
  Result<uint64_t> ReserveTrace(std::optional<uid_t> scope, double seconds, TraceStream& stream)
      PF_EXCLUDES(mutex_);
  void ReleaseTrace(uint64_t number, std::optional<uid_t> scope, std::chrono::steady_clock::time_point began)
      PF_EXCLUDES(mutex_);
  // Starts the trace on its thread, or says why not.
  Status StartTrace(const grpc::CallbackServerContext& context, const v1::TraceRequest& request,
                    TraceStream& stream);
  // Records and streams the trace. Returns the status that ends the call.
  Status RunTrace(TraceStream& stream, Tracer::Recording& recording, std::optional<uid_t> scope,
                  double seconds, uint64_t max_spans);

  const Parts parts_;
  Mutex mutex_;
  uint64_t last_trace_number_ PF_GUARDED_BY(mutex_) = 0;
  std::optional<ActiveTrace> active_trace_ PF_GUARDED_BY(mutex_);
  // When each pausing user may trace again. Past entries are dropped.
  std::map<uid_t, std::chrono::steady_clock::time_point> pauses_ PF_GUARDED_BY(mutex_);
  CallQueue calls_;
  CallQueue drops_;
};

}  // namespace pinfeed
