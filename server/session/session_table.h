// SPDX-License-Identifier: Apache-2.0
// The table of all sessions. In: sessions that are admitted, attach and depart. Out: their states, checks of
// limits, and views for status.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "server/metrics/snapshot.h"
#include "server/net/peer.h"
#include "server/session/session.h"

namespace pinfeed {

// Purpose: holds every session from Admit until it has ended, and enforces the limits on their number. Owns:
// the sessions, together with other threads. Threads: Admit, Close and the views from any thread; Attach and
// Depart from the session loop, or after it has stopped. None blocks. Errors: those of Admit and Attach.
// Invariant: `on_left` is called whenever AllLeft may have become true.
class SessionTable {
 public:
  // `max_per_user` limits the sessions of one user, `max_sessions` those of all users.
  SessionTable(uint32_t max_sessions, uint32_t max_per_user, std::function<void()> on_left)
      : max_sessions_(max_sessions), max_per_user_(max_per_user), on_left_(std::move(on_left)) {}

  // kResourceExhausted if the table is full or the user has reached the limit; kUnavailable if the table is
  // closed; kInvalidArgument for a group that could never be complete. With `replaces`, a session of that
  // user is about to end in favour of the new one and does not count.
  Status CheckRoom(uid_t user, uint32_t group_size, bool replaces) const PF_EXCLUDES(mutex_);
  // Adds a session, assigns its id, and checks the limits again.
  Status Admit(const std::shared_ptr<Session>& session, bool replaces) PF_EXCLUDES(mutex_);
  // Open sessions are kept.
  void SetLimit(uint32_t max_sessions) { max_sessions_.store(max_sessions, std::memory_order_relaxed); }
  uint32_t limit() const { return max_sessions_.load(std::memory_order_relaxed); }
  uint32_t max_per_user() const { return std::min(max_per_user_, limit()); }
  // Admits no more sessions.
  void Close() PF_EXCLUDES(mutex_);
  // kUnavailable once the table is closed.
  Status CheckOpen() const PF_EXCLUDES(mutex_);

  // Returns the session that `token` belongs to, or null.
  std::shared_ptr<Session> FindByToken(const uint8_t (&token)[kTokenBytes]) const PF_EXCLUDES(mutex_);
  // kPending -> kAttached: the feed publishes to it from now on. After an error the session stays pending.
  static Status Attach(Session& session);

  struct Departed {
    bool ended = false;  // it was removed from the table
    size_t kept = 0;     // batches that its client keeps, if it has not ended
  };
  // Ends a session. While its client may still use its memory, only removes it from its feed:
  //   kHungUp, attached           -> kOrphaned, until its process ends; keeps what it has taken of its group
  //   kLeft, attached             -> kLeft, until its client says bye
  //   kEvicted, attached, holding batches of its group -> kEvicted, until its client says bye
  //   kHungUp or kLeft otherwise  -> nothing changes
  //   anything else               -> it ends
  // If it was the last member of a group, the group's name is free before the client can notice. A session
  // that has ended may be passed again.
  Departed Depart(const std::shared_ptr<Session>& session, const Departure& departure) PF_EXCLUDES(mutex_);

  std::vector<std::shared_ptr<Session>> All() const PF_EXCLUDES(mutex_);
  // Returns null if there is none.
  std::shared_ptr<Session> Find(uint64_t id) const PF_EXCLUDES(mutex_);
  // Whether every client has left. Sessions that are orphaned, evicted or left do not count.
  bool AllLeft() const PF_EXCLUDES(mutex_);
  // So far.
  struct Counts {
    uint64_t opened = 0;
    uint64_t closed = 0;
    FallbackCounts fallbacks;  // sessions with a fallback
  };
  Counts counts() const PF_EXCLUDES(mutex_);
  // The number of sessions per user, for users with any.
  std::map<uid_t, uint32_t> by_user() const PF_EXCLUDES(mutex_);
  // Adds each session to its feed's report.
  void AddTo(std::vector<FeedReport>& feeds) const PF_EXCLUDES(mutex_);

 private:
  // The number of sessions, of that user or of all, that counts towards the limits. Sessions of groups that
  // left while they held batches do not count, up to the number of the others.
  size_t CountLocked(std::optional<uid_t> user) const PF_REQUIRES(mutex_);
  Status CheckRoomLocked(uid_t user, bool replaces) const PF_REQUIRES(mutex_);
  Status CheckOpenLocked() const PF_REQUIRES(mutex_);
  bool AllLeftLocked() const PF_REQUIRES(mutex_);

  std::atomic<uint32_t> max_sessions_;
  const uint32_t max_per_user_;
  const std::function<void()> on_left_;
  mutable Mutex mutex_;
  Counts counts_ PF_GUARDED_BY(mutex_);  // a session's id is its number
  bool closed_ PF_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, std::shared_ptr<Session>> sessions_ PF_GUARDED_BY(mutex_);
  std::map<uid_t, uint32_t> users_ PF_GUARDED_BY(mutex_);  // sessions per user
};

}  // namespace pinfeed
