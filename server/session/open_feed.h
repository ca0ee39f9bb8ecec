// SPDX-License-Identifier: Apache-2.0
// Opens feeds for clients, free of gRPC. In: the caller and its checked arguments. Out: a pending session, or
// what has to happen first.
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "common/base/result.h"
#include "proto/convert.h"
#include "server/loading/native_batch_producer.h"
#include "server/loading/worker_pool.h"
#include "server/memory/device_arenas.h"
#include "server/memory/host_memory_quarantine.h"
#include "server/memory/memory_budget.h"
#include "server/session/feed_table.h"
#include "server/session/session_table.h"

namespace pinfeed {

// No feed of the caller's group is there to join: open the dataset of the spec and call Open again with it.
struct DatasetNeeded {};
// The session that is to be replaced is the only one of its feed, which cannot go back to another position:
// the client ends that session and opens the feed anew. Nothing has changed.
struct ReplacedEndsFirst {};
using OpenFeedOutcome = std::variant<std::shared_ptr<Session>, DatasetNeeded, ReplacedEndsFirst>;

// Purpose: makes sessions. Borrows: all it is given (outlive it). Threads: any. Errors: OpenFeed's; on one
// nothing is left behind.
class FeedOpener {
 public:
  struct Parts {
    MemoryBudget& pool;
    HostMemoryQuarantine& quarantine;
    WorkerPool& workers;
    WorkerPool& readers;  // started with the first feed of a remote dataset
    FeedTable& feeds;
    SessionTable& sessions;
    uint32_t default_slots;
    DeviceArenas* devices;  // null: this daemon has no GPU
    Tracer& tracer;
  };
  explicit FeedOpener(const Parts& parts) : parts_(parts) {}

  // Checks the room for one more session, then joins the feed of the caller's group or makes a feed.
  // `dataset` is that of the spec; null while it is not open. On success the session is pending in the
  // session table.
  Result<OpenFeedOutcome> Open(const Peer& peer, const OpenFeedArguments& arguments,
                               std::shared_ptr<const Dataset> dataset) const;

 private:
  // Where the batches will lie, and if the client asked for the best: why there and not better.
  struct BackendChoice {
    Backend backend;
    std::string fallback;
  };
  Status CheckRoom(const Peer& peer, const OpenFeedArguments& arguments, bool replaces) const;
  // Whether `replaced` has to end before its successor opens: its feed is at work for no other session, and
  // would not begin anew at another position. An error says why the position is none.
  Result<bool> EndsFirst(const Session& replaced, const OpenFeedArguments& arguments) const;
  // A session on the feed for these arguments, not admitted yet; null when the feed needs a dataset.
  Result<std::shared_ptr<Session>> Join(const Peer& peer, const OpenFeedArguments& arguments,
                                        const BackendChoice& choice,
                                        std::shared_ptr<const Dataset> dataset) const;
  // The session that `replaces_session` names: null unless it is attached, belongs to the same process, and
  // is of the very feed that is asked for.
  std::shared_ptr<const Session> Replaced(const Peer& peer, const OpenFeedArguments& arguments) const;
  Result<BackendChoice> ChooseBackend(const Peer& peer, const OpenFeedArguments& arguments) const;
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
