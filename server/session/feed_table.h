// SPDX-License-Identifier: Apache-2.0
// All feeds, the groups that share them, and the thread that destroys them. In: sessions that join and
// depart. Out: feeds, and totals that only increase.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/spec/feed_spec.h"
#include "server/feed/feed.h"
#include "server/memory/ongoing_operation.h"
#include "server/metrics/snapshot.h"
#include "server/session/session.h"

namespace pinfeed {

// Purpose: creates, shares and ends feeds.
//
// Owns: the feeds, together with other threads (see Lifetime), and the reaper, a thread that destroys them,
// because that may wait for the driver. Threads: any. Join blocks while the feed is created, AwaitReclaim
// until its deadline; nothing else blocks. Errors: those of Join.
//
// Lifetime: a feed ends once it has no session and is at rest: no worker and no copy uses its arena. A feed
// whose workers hang keeps its memory, and no other feed waits for it. Other threads may still use a feed
// that is at rest: a worker that returns from its last task, the copy thread that reads releases, a snapshot
// or a trace. Each of them shares the ownership of the feed while it uses it. The reaper waits until it is
// the only owner, and destroys the feed with its memory. Once Stop has returned, no feed is left, so what
// feeds borrow (workers, engines, pools) can be destroyed. No owner waits for the reaper without a time
// limit.
//
// Invariants: 1. all sessions of a feed have the same UID and equal specs; 2. a feed is at rest before it is
// destroyed; 3. totals only increase.
class FeedTable {
 public:
  using Make = std::function<Result<std::unique_ptr<Feed>>(uint64_t feed_id)>;

  FeedTable() = default;
  ~FeedTable();

  void Start();
  // Waits until the remaining feeds are destroyed, and joins the reaper. Precondition: all sessions are
  // destroyed. Idempotent.
  void Stop() PF_EXCLUDES(mutex_);

  // Creates a session: on a new feed for an exclusive spec, otherwise on the group's feed, which its first
  // session creates. Returns null if a feed has to be created and `make` is empty. kFailedPrecondition names
  // the fields in which the spec differs from the group's.
  Result<std::shared_ptr<Session>> Join(uid_t uid, const FeedSpec& spec, const Make& make)
      PF_EXCLUDES(mutex_);
  // Removes the session from its feed. If it was the last one, the feed stops, and the group's name is free
  // before the client can notice. Returns how many batches the session keeps.
  size_t Depart(Session& session, const Departure& departure) PF_EXCLUDES(mutex_);
  // Called when the session is destroyed. If it was the last one, the feed ends and its memory is freed.
  void Release(Session& session) PF_EXCLUDES(mutex_);

  // The feed of a group; null if there is none, or it is being created.
  std::shared_ptr<Feed> FindGroup(uid_t uid, const std::string& group) const PF_EXCLUDES(mutex_);
  // Whether more than one session uses that feed.
  bool IsShared(const Feed& feed) const PF_EXCLUDES(mutex_);

  // Waits until the memory of the feeds that have ended is free, at most until `deadline`. Does not wait for
  // a feed that is not at rest after a second, because its workers may wait for hung storage.
  void AwaitReclaim(std::chrono::steady_clock::time_point deadline) PF_EXCLUDES(mutex_);

  std::vector<std::shared_ptr<Feed>> All() const PF_EXCLUDES(mutex_);
  // The reaper's current step; nothing if it is idle.
  std::optional<OngoingOperation> CurrentOperation() const PF_EXCLUDES(mutex_);

  struct View {
    std::vector<FeedReport> feeds;  // without sessions
    FeedTotals totals;
  };
  View Snapshot() PF_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  using GroupKey = std::pair<uid_t, std::string>;
  struct Entry {
    std::shared_ptr<Feed> feed;
    uint32_t active = 0;                           // sessions that have not departed
    uint32_t sessions = 0;                         // sessions that are not destroyed yet
    bool mapped = false;                           // a former client may still have the arena mapped
    std::vector<ClientProcess> remaining_mappers;  // the processes of such clients, where they are known
    uint64_t starved_ns = 0;      // the highest value reported by trainers, since it must not decrease
    bool at_rest = false;         // see Feed::Stop
    Clock::time_point gone = {};  // when its last session was destroyed
  };
  struct Group {
    FeedSpec spec;
    std::shared_ptr<Feed> feed;  // null while it is created
  };
  struct Job {
    std::shared_ptr<Feed> feed;
    const Arena* part = nullptr;  // the part of a departed session; null: the whole feed has ended
    bool keep = false;            // for a part: see Arena::ReleasePart
    bool discard = false;         // for a feed: see Arena::Discard
    std::vector<ClientProcess> remaining_mappers = {};
  };

  Result<std::shared_ptr<Feed>> MakeFeed(const Make& make) PF_EXCLUDES(mutex_);
  std::shared_ptr<Session> AddSession(const std::shared_ptr<Feed>& feed) PF_REQUIRES(mutex_);
  // Called when the feed with that id is at rest.
  void OnRest(uint64_t id) PF_EXCLUDES(mutex_);
  // Passes the feed to the reaper if it has no session and is at rest.
  void EndIfOver(Entry& entry) PF_REQUIRES(mutex_);
  // How long waiting for the memory of ended feeds makes sense; a past time if there is none.
  Clock::time_point ReclaimingUntil() const PF_REQUIRES(mutex_);
  void Reap() PF_EXCLUDES(mutex_);
  void Do(Job job) PF_EXCLUDES(mutex_);
  // Records the reaper's step for CurrentOperation.
  void Begin(std::string what) PF_EXCLUDES(mutex_);
  // Called when the last owner has released the feed; keeps it for the reaper.
  void Retire(Feed* feed) PF_EXCLUDES(mutex_);
  // Waits until all owners have released the feed. The caller destroys it without the lock.
  std::unique_ptr<Feed> TakeLast(const Feed* feed) PF_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  uint64_t next_id_ PF_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Entry> entries_ PF_GUARDED_BY(mutex_);
  std::map<GroupKey, Group> groups_ PF_GUARDED_BY(mutex_);
  FeedTotals ended_ PF_GUARDED_BY(mutex_);  // totals of destroyed feeds; `feeds` counts all feeds
  std::deque<Job> jobs_ PF_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Feed>> retired_ PF_GUARDED_BY(mutex_);  // released by all owners
  bool reaping_ PF_GUARDED_BY(mutex_) = false;
  std::optional<OngoingOperation> current_ PF_GUARDED_BY(mutex_);
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::thread reaper_;  // used by the owner only
};

}  // namespace pinfeed
