// SPDX-License-Identifier: Apache-2.0
// One client process attached (or about to be) to a feed, and the table of all of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log_context.h"
#include "common/base/result.h"
#include "common/base/sync.h"
#include "server/memory/control_pages.h"
#include "server/net/peer.h"
#include "server/order/sampler.h"
#include "server/session/feed_table.h"
#include "server/session/token.h"

namespace pinfeed {

enum class SessionState : uint8_t {
  kPending,   // opened; its lifeline is awaited
  kAttached,  // served
  kOrphaned,  // its lifeline hung up, its process lives: nothing more is published, its memory stays charged
  kEvicted,   // nothing more is published; its group waits for batches that it still holds
  kLeft,      // likewise, as its client wished
};
const char* SessionStateName(SessionState state);

// Purpose: what belongs to one session. Owns: its control pages and its part in the feed. Threads: `state`
// any, the rest is constant; `member` is used by the table alone. Invariant: attached to the feed exactly
// while kAttached.
struct Session {
  Session(uint64_t session_id, const Peer& session_peer, std::string name,
          std::optional<Sampler::Start> first, FeedMember part, std::unique_ptr<ControlPages> control,
          std::string worse, std::string trace)
      : id(session_id),
        peer(session_peer),
        client_name(std::move(name)),
        start(first),
        member(std::move(part)),
        pages(std::move(control)),
        fallback(std::move(worse)),
        trace_id(std::move(trace)) {}

  const uint64_t id;
  const Peer peer;
  const std::string client_name;
  const Token token = NewToken();
  const std::chrono::steady_clock::time_point opened = std::chrono::steady_clock::now();
  const std::optional<Sampler::Start> start;
  FeedMember member;
  const std::unique_ptr<ControlPages> pages;
  const std::string fallback;  // why its backend is no better one, if that was asked for
  const std::string trace_id;  // of the call that opened it; empty: none
  std::atomic<SessionState> state{SessionState::kPending};
};

// Nothing is published to it any more, and nobody waits for it.
bool HasLeft(const Session& session);
// Evicted, or left by its client: it takes no part any more, and may still hold batches of its group.
bool MayHold(const Session& session);
// "session 3 (pid 12, uid 1000, 'train.py')", for the log.
std::string Describe(const Session& session);

// For lines about it.
LogContext ContextOf(const Session& session);

// Purpose: every session from Open to End. Owns: the sessions. Borrows: the feed table (outlives it).
// Threads: Open, Close and the views from any thread; Attach, Orphan, Evict, Leave and End from the session
// loop, or when it has stopped. None blocks. Errors: Open and Attach say why not. Invariant: `on_left` is
// called whenever AllLeft may have become true.
class SessionTable {
 public:
  // `max_of_user`: of these, for each user.
  SessionTable(uint32_t max_sessions, uint32_t max_of_user, std::function<void()> on_left)
      : max_sessions_(max_sessions), max_of_user_(max_of_user), on_left_(std::move(on_left)) {}
  SessionTable(const SessionTable&) = delete;
  SessionTable& operator=(const SessionTable&) = delete;

  // kResourceExhausted when the table is full, or the user has all it may have, kUnavailable when it is
  // closed, kInvalidArgument for a group that could never be complete. `replaces`: one of that user's is
  // about to end for it, and does not count.
  Status CheckRoom(uid_t user, uint32_t group_size, bool replaces = false) const PF_EXCLUDES(mutex_);
  Result<std::shared_ptr<Session>> Open(const Peer& peer, std::string client_name,
                                        std::optional<Sampler::Start> start, FeedMember member,
                                        std::unique_ptr<ControlPages> pages, std::string fallback = {},
                                        std::string trace_id = {}, bool replaces = false) PF_EXCLUDES(mutex_);
  // Those that are open stay.
  void SetLimit(uint32_t max_sessions) { max_sessions_.store(max_sessions, std::memory_order_relaxed); }
  uint32_t limit() const { return max_sessions_.load(std::memory_order_relaxed); }
  // No further Open.
  void Close() PF_EXCLUDES(mutex_);

  // The pending session that `token` opens for this very process. kUnauthenticated when there is none.
  Result<std::shared_ptr<Session>> FindPending(const uint8_t (&token)[kTokenBytes], const Peer& peer) const
      PF_EXCLUDES(mutex_);
  // kPending -> kAttached: the feed publishes to it from now on. On an error the session stays pending.
  static Status Attach(Session& session);
  // kAttached -> kOrphaned.
  void Orphan(Session& session) PF_EXCLUDES(mutex_);
  // kAttached -> kEvicted: its trainer gets `error`, and keeps what it holds. Returns how many batches of a
  // group's those are; with 0, or in another state, the session is to be ended.
  size_t Evict(Session& session, const Status& error) PF_EXCLUDES(mutex_);
  // kAttached -> kLeft: what its client has not taken is the feed's, and what it holds stays its own. Nothing
  // in another state. When the client sees it, a group whose last member this was has its name free.
  void Leave(Session& session) PF_EXCLUDES(mutex_);
  // Takes everything back that is the daemon's. A second call for the same session does nothing.
  void End(const std::shared_ptr<Session>& session, const std::string& reason) PF_EXCLUDES(mutex_);

  std::vector<std::shared_ptr<Session>> All() const PF_EXCLUDES(mutex_);
  // Null when there is none.
  std::shared_ptr<Session> Find(uint64_t id) const PF_EXCLUDES(mutex_);
  // No client is left that could still leave: nobody waits for what is orphaned, evicted or left.
  bool AllLeft() const PF_EXCLUDES(mutex_);
  uint32_t max_of_user() const { return std::min(max_of_user_, limit()); }
  uint64_t opened() const PF_EXCLUDES(mutex_);
  uint64_t closed() const PF_EXCLUDES(mutex_);
  // Sessions of each user that has some.
  std::map<uid_t, uint32_t> by_user() const PF_EXCLUDES(mutex_);
  // Sessions with a fallback.
  FallbackCounts fallbacks() const PF_EXCLUDES(mutex_);
  // Adds each session to its feed's report.
  void AddTo(std::vector<FeedReport>& feeds) const PF_EXCLUDES(mutex_);

 private:
  // Sessions, of that user or all, as limits count them: without those of groups that their clients have left
  // with batches in hand, as long as these are not more than the others.
  size_t CountedLocked(std::optional<uid_t> user) const PF_REQUIRES(mutex_);
  Status CheckRoomLocked(uid_t user, bool replaces) const PF_REQUIRES(mutex_);
  bool AllLeftLocked() const PF_REQUIRES(mutex_);

  std::atomic<uint32_t> max_sessions_;
  const uint32_t max_of_user_;
  const std::function<void()> on_left_;
  mutable Mutex mutex_;
  uint64_t next_id_ PF_GUARDED_BY(mutex_) = 1;
  uint64_t closed_count_ PF_GUARDED_BY(mutex_) = 0;
  bool closed_ PF_GUARDED_BY(mutex_) = false;
  FallbackCounts fallbacks_ PF_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<Session>> sessions_ PF_GUARDED_BY(mutex_);
  std::map<uid_t, uint32_t> users_ PF_GUARDED_BY(mutex_);  // sessions of each
};

}  // namespace pinfeed
