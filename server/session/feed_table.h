// SPDX-License-Identifier: Apache-2.0
// All feeds, the groups that share them, and the thread that ends them. In: sessions that join and depart.
// Out: feeds; sums that never go down.
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

// Purpose: makes, shares and ends feeds.
//
// Owns: the feeds, with others (below), and a thread, the reaper, that destroys them, since that may wait for
// the driver. Threads: any. Join blocks while the feed is made; nothing else blocks. Errors: those of Join.
//
// Lifetime: a feed ends once it has no session and is at rest. One whose workers hang keeps its memory, and
// no other feed waits for it. Other threads may still use a feed that is at rest: a worker that returns from
// its last task, the copy thread that reads releases, a snapshot or a trace. Each of them owns a share of the
// feed as long as it uses it. The reaper waits until all shares are gone, and destroys the feed with its
// memory. So when Stop has returned nothing is left of any feed, and what feeds borrow (workers, engines,
// pools) may go. No owner of a share waits for the reaper without a limit.
//
// Invariants: 1. all sessions of a feed have one UID and equal specs; 2. a feed is at rest before it is
// destroyed; 3. Totals() only grow.
class FeedTable {
 public:
  using Make = std::function<Result<std::unique_ptr<Feed>>(uint64_t feed_id)>;

  FeedTable() = default;
  ~FeedTable();
  FeedTable(const FeedTable&) = delete;
  FeedTable& operator=(const FeedTable&) = delete;

  void Start();
  // Waits for the end of every feed that is left, and joins. Precondition: all sessions are destroyed.
  // Idempotent.
  void Stop() PF_EXCLUDES(mutex_);

  // A session on a feed of its own for an exclusive spec, else on the group's feed, which the first session
  // makes. Null when a feed has to be made and `make` is empty. kFailedPrecondition names the fields in which
  // the spec differs from the group's.
  Result<std::shared_ptr<Session>> Join(uid_t uid, const FeedSpec& spec, const Make& make)
      PF_EXCLUDES(mutex_);
  // Ends the session's part in the feed. A group whose last session departs has its name free before the
  // client can see that; the feed stops. Returns how many batches it keeps.
  size_t Depart(Session& session, const Departure& departure) PF_EXCLUDES(mutex_);
  // The session is being destroyed: its memory may go. When it was the last one, the feed ends.
  void Release(Session& session) PF_EXCLUDES(mutex_);

  // Whether more than one session takes part in that feed.
  bool IsShared(const Feed& feed) const PF_EXCLUDES(mutex_);

  // Tells all feeds to publish no new batches.
  void DrainAll() PF_EXCLUDES(mutex_);
  // Waits until the memory of the feeds that ended so far is back, at most until `deadline`. One that has not
  // come to rest within a second is not waited for: its workers may be held by storage that does not answer.
  void AwaitReclaim(std::chrono::steady_clock::time_point deadline) PF_EXCLUDES(mutex_);

  std::vector<std::shared_ptr<Feed>> All() PF_EXCLUDES(mutex_);
  // The step that the reaper is at; nothing when it has nothing to do.
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
    uint32_t active = 0;                           // sessions that take part
    uint32_t sessions = 0;                         // sessions that are not destroyed
    bool mapped = false;                           // a former client may still have the arena mapped
    std::vector<ClientProcess> remaining_mappers;  // the processes of such clients, where they are known
    uint64_t starved_ns = 0;      // the most ever seen: trainers report it, and it must not go down
    bool at_rest = false;         // see Feed::Stop
    Clock::time_point gone = {};  // when its last session was destroyed
  };
  struct Group {
    FeedSpec spec;
    std::shared_ptr<Feed> feed;  // null while it is made
  };
  struct Job {
    std::shared_ptr<Feed> feed;
    const Arena* part = nullptr;  // that a session gives up; null: the feed ends, which is at rest
    bool keep = false;            // of a part: see Arena::ReleasePart
    bool discard = false;         // of a feed: give the arena's pages back
    std::vector<ClientProcess> remaining_mappers = {};
  };

  Result<std::shared_ptr<Feed>> MakeFeed(const Make& make) PF_EXCLUDES(mutex_);
  std::shared_ptr<Session> AddSession(const std::shared_ptr<Feed>& feed) PF_REQUIRES(mutex_);
  // The feed with that id is at rest.
  void OnRest(uint64_t id) PF_EXCLUDES(mutex_);
  // Leaves the end to the reaper, if the feed has no session any more and is at rest.
  void EndIfOver(Entry& entry) PF_REQUIRES(mutex_);
  // Until when it may pay to wait for the memory of what has ended; the past when there is none.
  Clock::time_point ReclaimingUntil() const PF_REQUIRES(mutex_);
  void Reap() PF_EXCLUDES(mutex_);
  void Do(Job job) PF_EXCLUDES(mutex_);
  // Notes the reaper's step, for CurrentOperation.
  void Begin(std::string what) PF_EXCLUDES(mutex_);
  // The last share of the feed is gone: keeps it for the reaper.
  void Retire(Feed* feed) PF_EXCLUDES(mutex_);
  // Waits until all shares of the feed are gone. The caller destroys it without the lock.
  std::unique_ptr<Feed> TakeLast(const Feed* feed) PF_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  uint64_t next_id_ PF_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Entry> entries_ PF_GUARDED_BY(mutex_);
  std::map<GroupKey, Group> groups_ PF_GUARDED_BY(mutex_);
  FeedTotals ended_ PF_GUARDED_BY(mutex_);  // of the feeds that are gone; its `feeds` counts all
  std::deque<Job> jobs_ PF_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Feed>> retired_ PF_GUARDED_BY(mutex_);  // whose shares are gone
  bool reaping_ PF_GUARDED_BY(mutex_) = false;
  std::optional<OngoingOperation> current_ PF_GUARDED_BY(mutex_);
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::thread reaper_;  // owner only
};

}  // namespace pinfeed
