// SPDX-License-Identifier: Apache-2.0
// The gRPC service for trainers: pinfeed.v1.Feeder. Only server/rpc/ knows gRPC.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "pinfeed/v1/feeder.grpc.pb.h"
#include "server/dataset/dataset_cache.h"
#include "server/metrics/snapshot.h"
#include "server/net/refusals.h"
#include "server/net/user_counts.h"
#include "server/rpc/call_queue.h"
#include "server/rpc/callers.h"
#include "server/rpc/dataset_opener.h"
#include "server/session/lifeline.h"
#include "server/session/open_feed.h"

namespace pinfeed {

// Purpose: translates calls for the session layer, and its results into messages. Owns: the threads of
// OpenFeed, which allocate memory, and that of GetStatus. Borrows: all it is given (outlive it). Threads:
// gRPC's, any number concurrently. A client that does not read blocks none of them. A call that waits for a
// dataset holds no thread here, and ends when its client cancels it. Errors: our codes are gRPC's. Invariant:
// every call is finished; outlives the gRPC server.
class FeederService final : public v1::Feeder::CallbackService {
 public:
  struct Parts {
    const Callers& callers;
    const FeedOpener& opener;
    const DatasetCache& datasets;
    DatasetOpener& dataset_opener;
    LifelineServer& lifelines;
    Refusals& refusals;
    SnapshotFunction snapshot;
    std::string version;
    std::string boot_id;  // of the running kernel
    uint64_t server_epoch;
  };
  explicit FeederService(Parts parts);

  grpc::ServerUnaryReactor* OpenFeed(grpc::CallbackServerContext* context, const v1::OpenFeedRequest* request,
                                     v1::OpenFeedResponse* response) override;
  grpc::ServerUnaryReactor* JoinBatcher(grpc::CallbackServerContext* context,
                                        const v1::JoinBatcherRequest* request,
                                        v1::BatcherInvitation* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* ListDatasets(grpc::CallbackServerContext* context,
                                         const v1::ListDatasetsRequest* request,
                                         v1::ListDatasetsResponse* response) override;

 private:
  class Call;      // answered later
  struct Opening;  // an OpenFeed call until it is answered

  // Identifies the caller, and counts the request until the call is finished. Returns false if the call was
  // refused, which finishes it.
  bool Admit(Call& call, const google::protobuf::Message& request);
  // Counts the call's answer until it was read. kResourceExhausted if the caller's user has too many that
  // were not, until the deadline.
  Status CountUnread(Call& call, uint64_t bytes, std::chrono::steady_clock::time_point deadline);
  // Finishes the call with this answer, or as CountUnread.
  void Answer(Call& call, google::protobuf::Message& answer);
  // Runs `work` on a thread of the queue, or refuses the call.
  void Queue(Call& call, std::function<void()> work);
  void Refuse(Call& call, const Status& error) const;
  Status Join(const Caller& caller, const v1::JoinBatcherRequest& request,
              v1::BatcherInvitation& response) const;
  Result<OpenFeedArguments> Check(const Caller& caller, const v1::OpenFeedRequest& request) const;
  // The steps of an OpenFeed call: the checks that need no dataset; opening the dataset, unless the group has
  // it open; creating the session.
  void Begin(const std::shared_ptr<Opening>& opening);
  void OpenDataset(const std::shared_ptr<Opening>& opening);
  // `dataset` is null if it is not open yet.
  void Open(const std::shared_ptr<Opening>& opening, const std::shared_ptr<const Dataset>& dataset);
  // Describes the new session in the answer. After an error its client does not get it.
  Status Offer(Opening& opening, const std::shared_ptr<Session>& session);

  const Parts parts_;
  UserCounts requests_;  // bytes that the requests of unfinished calls take
  UserCounts unread_;    // bytes of answers that gRPC has not passed on
  CallQueue calls_;
  CallQueue status_calls_;  // guarded connections bound how many wait
};

// Reads /proc/sys/kernel/random/boot_id.
Result<std::string> ReadBootId();

}  // namespace pinfeed
