// SPDX-License-Identifier: Apache-2.0
// The gRPC face for operators: pinfeed.v1.Admin over the session layer.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>

#include "pinfeed/v1/admin.grpc.pb.h"
#include "server/pipeline/tracer.h"
#include "server/session/call_queue.h"
#include "server/session/feed_table.h"
#include "server/session/peer.h"
#include "server/session/session.h"
#include "server/session/trace_stream.h"
#include "server/telemetry/refusals.h"

namespace pinfeed {

// Purpose: decides who may, and does it. Owns: the thread of the one trace that may run. Borrows: all it is
// given (outlive it). Threads: gRPC's, any number at once; none is held by a client that does not read.
// Errors: our codes are gRPC's. Invariant: every call is finished; outlives the gRPC server.
class AdminService final : public v1::Admin::CallbackService {
 public:
  struct Parts {
    const PeerRegistry& peers;
    FeedTable& feeds;
    const SessionTable& sessions;
    Refusals& refusals;
    Tracer& tracer;
    uid_t own_uid;  // the daemon's
  };
  explicit AdminService(const Parts& parts) : parts_(parts), calls_(1, 1) {}

  grpc::ServerWriteReactor<v1::TraceResponse>* Trace(grpc::CallbackServerContext* context,
                                                     const v1::TraceRequest* request) override;

 private:
  // Whose feeds the caller may see; nothing: all.
  std::optional<uid_t> ScopeOf(const Peer& peer) const;
  // Starts the recording, or says why not.
  Status BeginTrace(const grpc::CallbackServerContext& context, const v1::TraceRequest& request,
                    TraceStream& stream);
  void RunTrace(TraceStream& stream, Tracer::Recording& recording, std::optional<uid_t> scope, double seconds,
                uint64_t max_spans);

  const Parts parts_;
  CallQueue calls_;
};

}  // namespace pinfeed
