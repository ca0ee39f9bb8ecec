// SPDX-License-Identifier: Apache-2.0
// The gRPC face: pinfeed.v1.Feeder over the session layer. Beside it and service.cc,
// admin_service.*, health_service.*, trace_stream.*, grpc_status.* and rpc_server.cc know gRPC.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "pinfeed/v1/feeder.grpc.pb.h"
#include "server/session/call_queue.h"
#include "server/session/callers.h"
#include "server/session/dataset_cache.h"
#include "server/session/lifeline.h"
#include "server/session/open_feed.h"
#include "server/telemetry/refusals.h"
#include "server/telemetry/snapshot.h"

namespace pinfeed {

// Purpose: turns calls into the session layer's, and its answers into messages. Owns: the threads of OpenFeed
// and ListDatasets, which may block on the disk. Borrows: all it is given (outlive it). Threads: gRPC's, any
// number at once; none is held by a client that does not read its answer. Errors: our codes are gRPC's.
// Invariant: every call is finished; outlives the gRPC server.
class FeederService final : public v1::Feeder::CallbackService {
 public:
  struct Parts {
    const Callers& callers;
    const FeedOpener& opener;
    DatasetCache& datasets;
    LifelineServer& lifelines;
    Refusals& refusals;
    SnapshotFunction snapshot;
    std::string version;
    std::string boot_id;  // of this kernel
    uint64_t server_epoch;
  };
  explicit FeederService(Parts parts);

  grpc::ServerUnaryReactor* OpenFeed(grpc::CallbackServerContext* context, const v1::OpenFeedRequest* request,
                                     v1::OpenFeedResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* ListDatasets(grpc::CallbackServerContext* context,
                                         const v1::ListDatasetsRequest* request,
                                         v1::ListDatasetsResponse* response) override;

 private:
  using Work = std::function<grpc::Status(const Caller& caller)>;
  // Answers the call with what `work` gives, on a thread of the queue.
  grpc::ServerUnaryReactor* Queue(grpc::CallbackServerContext* context, const char* what, Work work);
  grpc::Status Open(const Caller& caller, const grpc::CallbackServerContext& context,
                    const v1::OpenFeedRequest& request, v1::OpenFeedResponse* response) const;
  Result<std::shared_ptr<Session>> OpenSession(const Caller& caller, const v1::OpenFeedRequest& request,
                                               std::string trace_id) const;
  grpc::Status List(const grpc::CallbackServerContext& context, v1::ListDatasetsResponse* response) const;

  const Parts parts_;
  CallQueue calls_;
};

// /proc/sys/kernel/random/boot_id.
Result<std::string> ReadBootId();

}  // namespace pinfeed
