// SPDX-License-Identifier: Apache-2.0
// Opens feeds for clients, independent of gRPC. In: the caller and its checked arguments. Out: a pending
// session, or what the caller has to do first.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/base/result.h"
#include "proto/convert.h"
#include "server/cache/decoded_cache.h"
#include "server/loading/native_batch_producer.h"
#include "server/loading/process_batch_producer.h"
#include "server/loading/request_batch_producer.h"
#include "server/loading/resident_table.h"
#include "server/loading/worker_pool.h"
#include "server/memory/device_arenas.h"
#include "server/memory/host_arena.h"
#include "server/memory/host_memory_quarantine.h"
#include "server/memory/memory_budget.h"
#include "server/session/feed_table.h"
#include "server/session/session_table.h"

namespace pinfeed {

// There is no feed to join. Open the dataset of the spec and call Open again with it.
struct DatasetNeeded {};
// The session to be replaced is the only one of its feed, and a feed cannot change its position. The client
// ends that session and opens the feed again. Nothing has changed.
struct ReplacedEndsFirst {};
// The request of a process to join a batcher.
struct JoinBatcherArguments {
  std::string name;
  bool consumer = false;
  uint32_t slots = 0;
  uint64_t max_request_bytes = 0;
};
// What a client's or consumer's connection serves. The tensors of a client's memory are its request and its
// answer; of a consumer's the answers and their lengths.
struct BatcherPlace {
  std::shared_ptr<BatcherQueue> queue;
  std::shared_ptr<HostArena> memory;
  bool consumer = false;
};
inline constexpr size_t kRequestTensor = 0, kAnswerTensor = 1;
inline constexpr size_t kAnswersTensor = 0, kLengthsTensor = 1;

struct BackendChoice;
using OpenFeedOutcome = std::variant<std::shared_ptr<Session>, DatasetNeeded, ReplacedEndsFirst>;

// Purpose: creates sessions, on the feeds that a FeedBuilder makes. Borrows: all it is given (outlive it).
// Threads: any. Errors: those of OpenFeed; nothing is left behind then.
class FeedOpener {
 public:
  struct Parts {
    MemoryBudget& pool;
    HostMemoryQuarantine& quarantine;
    HostMemoryQuarantine& one_off_memory;  // of single batches
    WorkerPool& workers;
    WorkerPool& readers;  // started with the first feed of a remote dataset
    FeedTable& feeds;
    SessionTable& sessions;
    uint32_t default_slots;
    uint32_t cpus;          // that the daemon may use
    DeviceArenas* devices;  // null: the daemon has no GPU
    Tracer& tracer;
    DecodedCache* cache = nullptr;  // null: the daemon has none
    // Returns the directories below which clients may name files; null: there are none.
    std::function<std::vector<std::string>()> allowed_roots = nullptr;
    ResidentTable* residents = nullptr;  // set where `devices` is
  };
  explicit FeedOpener(const Parts& parts) : parts_(parts) {}

  // Checks the limits for one more session, then joins the feed of the caller's group or creates a feed.
  // `dataset` is the spec's, or null if it is not open yet. On success the session is pending in the session
  // table.
  Result<OpenFeedOutcome> Open(const Peer& peer, const OpenFeedArguments& arguments,
                               std::shared_ptr<const Dataset> dataset) const;

  // Makes the memory of a batcher's client or consumer, charged to its user. kNotFound if the user has no
  // such batcher; kFailedPrecondition for a consumer without a session of it.
  Result<BatcherPlace> JoinBatcher(const Peer& peer, const JoinBatcherArguments& arguments) const;

 private:
  Status CheckRoom(const Peer& peer, const OpenFeedArguments& arguments, bool replaces) const;
  // Whether `replaced` has to end before its successor opens, because no other session uses its feed. Returns
  // an error if the cursor is not valid for the feed.
  Result<bool> EndsFirst(const Session& replaced, const OpenFeedArguments& arguments) const;
  // Creates a session that is not admitted yet. Returns null if the feed needs a dataset.
  Result<std::shared_ptr<Session>> Join(const Peer& peer, const OpenFeedArguments& arguments,
                                        const BackendChoice& choice,
                                        std::shared_ptr<const Dataset> dataset) const;
  // Returns the session that `replaces_session` names. Null unless it is attached, and belongs to the same
  // process and to the requested feed.
  std::shared_ptr<const Session> Replaced(const Peer& peer, const OpenFeedArguments& arguments) const;
  Result<BackendChoice> ChooseBackend(const Peer& peer, const OpenFeedArguments& arguments) const;
  Status CheckIpc(const Peer& peer, const OpenFeedArguments& arguments) const;

  const Parts parts_;
};

// The cursor of the session's first batch.
Cursor StartCursor(const Session& session);

}  // namespace pinfeed
