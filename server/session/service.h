// SPDX-License-Identifier: Apache-2.0
// The gRPC face: pinfeed.v1.Feeder over the session layer. Only this file, service.cc and rpc_server.cc know
// gRPC.
#pragma once

#include <cstdint>
#include <string>

#include "pinfeed/v1/feeder.grpc.pb.h"
#include "server/session/dataset_cache.h"
#include "server/session/lifeline.h"
#include "server/session/open_feed.h"
#include "server/session/peer.h"
#include "server/telemetry/refusals.h"
#include "server/telemetry/snapshot.h"

namespace pinfeed {

// Purpose: turns calls into the session layer's, and its answers into messages. Borrows: all it is given
// (outlive it). Threads: gRPC's, any number at once; OpenFeed and ListDatasets may block on the disk. Errors:
// our codes are gRPC's.
class FeederService final : public v1::Feeder::Service {
 public:
  struct Parts {
    const PeerRegistry& peers;
    const FeedOpener& opener;
    DatasetCache& datasets;
    LifelineServer& lifelines;
    Refusals& refusals;
    SnapshotFunction snapshot;
    std::string version;
    std::string boot_id;  // of this kernel
    uint64_t server_epoch;
  };
  explicit FeederService(Parts parts) : parts_(std::move(parts)) {}

  grpc::Status OpenFeed(grpc::ServerContext* context, const v1::OpenFeedRequest* request,
                        v1::OpenFeedResponse* response) override;
  grpc::Status GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest* request,
                         v1::GetStatusResponse* response) override;
  grpc::Status ListDatasets(grpc::ServerContext* context, const v1::ListDatasetsRequest* request,
                            v1::ListDatasetsResponse* response) override;

 private:
  Result<std::shared_ptr<Session>> Open(const Peer& peer, const v1::OpenFeedRequest& request) const;

  const Parts parts_;
};

// /proc/sys/kernel/random/boot_id.
Result<std::string> ReadBootId();

}  // namespace pinfeed
