// SPDX-License-Identifier: Apache-2.0
// What OpenFeed does, free of gRPC. In: who asks, and checked arguments. Out: a pending session with its
// feed.
#pragma once

#include <memory>
#include <string>

#include "common/base/result.h"
#include "proto/convert.h"
#include "server/loading/native_batch_producer.h"
#include "server/loading/worker_pool.h"
#include "server/memory/device_arenas.h"
#include "server/memory/host_memory_quarantine.h"
#include "server/memory/memory_budget.h"
#include "server/session/feed_table.h"
#include "server/session/session.h"

namespace pinfeed {

// Purpose: makes sessions. Borrows: all it is given (outlive it). Threads: any. Errors: OpenFeed's; on one
// nothing is left behind.
class FeedOpener {
 public:
  struct Parts {
    MemoryBudget& pool;
    HostMemoryQuarantine& kept;
    WorkerPool& workers;
    FeedTable& feeds;
    SessionTable& sessions;
    uint32_t default_slots;
    DeviceArenas* devices;  // null: this daemon has no GPU
    Tracer& tracer;
  };
  explicit FeedOpener(const Parts& parts) : parts_(parts) {}

  // Whether there is room for one more session of that user: before anything costly; Open decides.
  Status CheckRoom(const Peer& peer, const OpenFeedArguments& arguments) const;
  // Whether the session that it is to replace has to end before Open, as their feed is at work for nobody
  // else: that feed would not begin anew at another position. Then the errors for the position are here,
  // before anything has ended. False when it replaces none.
  Result<bool> MustEndFirst(const Peer& peer, const OpenFeedArguments& arguments) const;
  // False when its group has a feed.
  bool NeedsDataset(const Peer& peer, const OpenFeedArguments& arguments) const;

  // Of Open without a dataset, when its group ended meanwhile: open the dataset, and try again.
  static constexpr Code kGroupEnded = Code::kAborted;
  // `dataset` is that of the spec, or null where NeedsDataset said no.
  Result<std::shared_ptr<Session>> Open(const Peer& peer, const OpenFeedArguments& arguments,
                                        std::shared_ptr<const Dataset> dataset) const;

 private:
  // Where the batches will lie, and if the client asked for the best: why there and not better.
  struct Choice {
    Backend backend;
    std::string fallback;
  };
  // The session that `replaces_session` names: null unless it is attached, this process's, and of the very
  // feed that is asked for.
  std::shared_ptr<const Session> Replaced(const Peer& peer, const OpenFeedArguments& arguments) const;
  Result<Choice> Choose(const Peer& peer, const OpenFeedArguments& arguments) const;
  Status CheckIpc(const Peer& peer, const OpenFeedArguments& arguments) const;
  Result<std::unique_ptr<Feed>> MakeFeed(uint64_t feed_id, uid_t owner, const OpenFeedArguments& arguments,
                                         Backend backend, std::shared_ptr<const Dataset> dataset) const;
  // For memory of that backend that feeds which just ended had, a little while.
  void AwaitMemory(Backend backend) const;
  Result<std::unique_ptr<Arena>> MakeArena(const OpenFeedArguments& arguments, Backend backend,
                                           const BatchLayout& layout, uint32_t slots, uid_t owner) const;

  const Parts parts_;
};

// Where the session's first batch will be read from.
Cursor StartCursor(const Session& session);

}  // namespace pinfeed
