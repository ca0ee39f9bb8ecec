// SPDX-License-Identifier: Apache-2.0
// All feeds, the groups that share them, and the thread that ends them. In: sessions that join and leave.
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

namespace pinfeed {

class FeedTable;

// Purpose: one session's part in a feed. Owns: a share of the feed. Borrows: the table, which outlives it.
// Move-only. Threads: one at a time. Errors: none. Invariant: the feed and its arena live until the last
// member is gone.
class FeedMember {
 public:
  FeedMember(FeedMember&& other) noexcept
      : table_(std::exchange(other.table_, nullptr)),
        feed_(std::move(other.feed_)),
        active_(std::exchange(other.active_, false)),
        mapped_(other.mapped_),
        served_(other.served_),
        arena_(other.arena_),
        client_(std::move(other.client_)) {}
  FeedMember& operator=(FeedMember&& other) = delete;
  ~FeedMember();

  Feed& feed() const { return *feed_; }
  // What this session's client maps: the feed's arena, or the part of it that was taken.
  const Arena& arena() const { return arena_ != nullptr ? *arena_ : feed_->arena(); }
  // The part for clients on that GPU, until this member is gone. See Arena::At. At most once with success.
  Status TakeArena(const std::string& gpu_uuid);
  // Its client is attached.
  void SetServed() { served_ = true; }
  // Takes no part any more; its memory may still be mapped by somebody. When the last member left, the feed
  // is told to stop and its group's name is free. Idempotent.
  void Leave();
  // Its client says that it has unmapped the arena, or never had it. Once all members said so, the pages go
  // back to the kernel at the end, whoever still has the memory.
  void Unmapped() { mapped_ = false; }
  // Who may have the arena mapped: see Arena::LeaveTo.
  void SetClient(ClientProcess client) { client_ = std::move(client); }

 private:
  friend class FeedTable;
  FeedMember(FeedTable* table, std::shared_ptr<Feed> feed)
      : table_(table), feed_(std::move(feed)), active_(true) {}

  FeedTable* table_;
  std::shared_ptr<Feed> feed_;
  bool active_;
  bool mapped_ = true;
  bool served_ = false;
  const Arena* arena_ = nullptr;  // of the feed's
  std::optional<ClientProcess> client_;
};

// Purpose: makes, shares and ends feeds.
//
// Owns: the feeds, with others (below), and a thread, the reaper, that destroys them, since that may wait for
// the driver. Threads: any. Join blocks while the feed is made; nothing else blocks. Errors: those of Join.
//
// Lifetime: a feed ends once it has no member and is at rest; one whose workers hang keeps its memory, and no
// other feed waits for it. One that is at rest may still be in somebody's hands: a worker on its way back
// from its last task, the copy thread from the last delivery or in the middle of reading releases, who makes
// a snapshot or a trace. Each owns a share of it for as long as that takes. The reaper waits until all have
// let go and destroys it with its memory, so that when Stop has returned nothing is left of any feed, and
// what feeds borrow (workers, engines, pools) may go. None of those who hold a share waits for the reaper
// without a limit.
//
// Invariants: 1. all members of a feed have one UID and equal specs; 2. a feed is at rest before it is
// destroyed; 3. Totals() only grow.
class FeedTable {
 public:
  using Make = std::function<Result<std::unique_ptr<Feed>>(uint64_t feed_id)>;

  FeedTable() = default;
  ~FeedTable();
  FeedTable(const FeedTable&) = delete;
  FeedTable& operator=(const FeedTable&) = delete;

  void Start();
  // Waits for the end of every feed that is left, and joins. Precondition: all members are gone. Idempotent.
  void Stop() PF_EXCLUDES(mutex_);

  // A feed of its own for an exclusive spec; else the group's, made by whoever comes first.
  // kFailedPrecondition names the fields in which the spec differs from the group's.
  Result<FeedMember> Join(uid_t uid, const FeedSpec& spec, const Make& make) PF_EXCLUDES(mutex_);

  // Whether Join would find the feed of its group, rather than make one.
  bool HasGroup(uid_t uid, const FeedSpec& spec) const PF_EXCLUDES(mutex_);

  // Whether more than one member takes part in that feed.
  bool IsShared(const Feed& feed) const PF_EXCLUDES(mutex_);

  // Tells all feeds to publish no new batches.
  void DrainAll() PF_EXCLUDES(mutex_);
  // Waits until the memory of the feeds that ended so far is back, at most until `deadline`. One that has not
  // come to rest within a second is not waited for: its workers may be held by storage that does not answer.
  void AwaitReclaim(std::chrono::steady_clock::time_point deadline) PF_EXCLUDES(mutex_);

  std::vector<std::shared_ptr<Feed>> All() PF_EXCLUDES(mutex_);
  // The step that the reaper is at; nothing when it has nothing to do.
  std::optional<OngoingOperation> CurrentChore() const PF_EXCLUDES(mutex_);

  struct View {
    std::vector<FeedReport> feeds;  // without sessions
    FeedTotals totals;
  };
  View Snapshot() PF_EXCLUDES(mutex_);

 private:
  friend class FeedMember;
  using Clock = std::chrono::steady_clock;
  using GroupKey = std::pair<uid_t, std::string>;
  struct Entry {
    std::shared_ptr<Feed> feed;
    uint32_t active = 0;                           // members that take part
    uint32_t members = 0;                          // members at all
    bool mapped = false;                           // a member left that may still have the arena mapped
    std::vector<ClientProcess> remaining_mappers;  // the processes of such members, where they are known
    uint64_t starved_ns = 0;      // the most ever seen: trainers report it, and it must not go down
    bool at_rest = false;         // see Feed::Stop
    Clock::time_point gone = {};  // when it had no member any more
  };
  struct Group {
    FeedSpec spec;
    std::shared_ptr<Feed> feed;  // null while it is made
  };
  struct Job {
    std::shared_ptr<Feed> feed;
    const Arena* part = nullptr;  // that a member leaves; null: the feed ends, which is at rest
    bool keep = false;            // of a part: see Arena::LeaveAt
    bool discard = false;         // of a feed: give the arena's pages back
    std::vector<ClientProcess> remaining_mappers = {};
  };

  Result<std::shared_ptr<Feed>> MakeFeed(const Make& make) PF_EXCLUDES(mutex_);
  FeedMember AddMember(const std::shared_ptr<Feed>& feed) PF_REQUIRES(mutex_);
  void Leave(const std::shared_ptr<Feed>& feed) PF_EXCLUDES(mutex_);
  void Forget(FeedMember& member) PF_EXCLUDES(mutex_);
  // The feed with that id is at rest.
  void Rest(uint64_t id) PF_EXCLUDES(mutex_);
  // Leaves the end to the reaper, if the feed has no member any more and is at rest.
  void EndIfOver(Entry& entry) PF_REQUIRES(mutex_);
  // Until when it may pay to wait for the memory of what has ended; the past when there is none.
  Clock::time_point ReclaimingUntil() const PF_REQUIRES(mutex_);
  void Reap() PF_EXCLUDES(mutex_);
  void Do(Job job) PF_EXCLUDES(mutex_);
  // Of the reaper, for CurrentChore.
  void Begin(std::string what) PF_EXCLUDES(mutex_);
  // Nobody has a share of it any more: it is for the reaper.
  void Retire(Feed* feed) PF_EXCLUDES(mutex_);
  // Waits until nobody has a share of it; to be destroyed without the lock.
  std::unique_ptr<Feed> TakeLast(const Feed* feed) PF_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  uint64_t next_id_ PF_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Entry> entries_ PF_GUARDED_BY(mutex_);
  std::map<GroupKey, Group> groups_ PF_GUARDED_BY(mutex_);
  FeedTotals ended_ PF_GUARDED_BY(mutex_);  // of the feeds that are gone; its `feeds` counts all
  std::deque<Job> jobs_ PF_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Feed>> retired_ PF_GUARDED_BY(mutex_);  // of which nobody has a share
  bool reaping_ PF_GUARDED_BY(mutex_) = false;
  std::optional<OngoingOperation> current_ PF_GUARDED_BY(mutex_);
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::thread reaper_;  // owner only
};

}  // namespace pinfeed
