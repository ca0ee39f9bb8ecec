// SPDX-License-Identifier: Apache-2.0
// A session: one client process that uses a feed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/base/log_context.h"
#include "server/feed/feed.h"
#include "server/feed/participant.h"
#include "server/loading/resident_data.h"
#include "server/memory/arena.h"
#include "server/memory/client_process.h"
#include "server/net/peer.h"
#include "server/session/token.h"

namespace pinfeed {

class FeedTable;

enum class SessionState : uint8_t {
  kPending,   // opened; its lifeline is not connected yet
  kAttached,  // served
  // Its lifeline hung up but its process lives: it gets no batches, and its memory stays charged. Its group
  // waits for those that it still holds.
  kOrphaned,
  kEvicted,  // it gets no batches; its group waits for those that it still holds
  kLeft,     // the same, at its client's request
  kEnded,    // it is in no table any more
};
const char* SessionStateName(SessionState state);

// Purpose: one participant of a feed, from FeedTable::Join until its memory may be freed. Owns: its control
// pages, and the feed together with other sessions. Borrows: the feed table, which outlives it.
// Threads: `state` from any thread; `taking_part` is guarded by the feed table's lock, the base class by the
// feed's; `served` and `mapped` are written before the session is in the session table, and by the session
// loop; the rest is constant once it is there. Invariants: 1. the feed and its memory live until the last
// session is destroyed; 2. it is a member of the feed exactly while kAttached.
struct Session : Participant {
  Session(FeedTable& feed_table, std::shared_ptr<Feed> joined) : table(feed_table), feed(std::move(joined)) {}
  ~Session();

  // The arena that its client maps: the feed's, or the part on the client's GPU.
  const Arena& arena() const { return part != nullptr ? *part : feed->arena(); }
  bool is_shared() const { return feed->spec().sharing != Sharing::kExclusive; }

  FeedTable& table;
  const std::shared_ptr<Feed> feed;
  uint64_t id = 0;
  Peer peer;
  std::string client_name;
  const Token token = RandomBytes<Token>();
  const std::chrono::steady_clock::time_point opened = std::chrono::steady_clock::now();
  const Arena* part = nullptr;             // the part of the feed's arena; null: all of it
  std::shared_ptr<ResidentData> resident;  // that its client maps, too; null: none
  std::optional<ClientProcess> process;    // set if it may have device memory mapped
  std::string shares_on;  // the GPU on which members can decode images for each other; empty: it cannot
  uint64_t replaces = 0;  // the session that its client says it will end; 0: none
  std::string fallback;   // why its backend is not a better one that was requested
  std::string trace_id;   // the trace id of the call that opened it; empty: none
  std::atomic<SessionState> state{SessionState::kPending};
  bool served = false;      // it has been kAttached
  bool mapped = false;      // its client may have the memory mapped
  bool taking_part = true;  // it has not departed from its feed and group
};

// Whether it gets no more batches, so that a stopping daemon does not wait for it.
bool HasLeft(const Session& session);
// Whether it has departed and may still hold batches of its group.
bool MayHold(const Session& session);
// Returns "session 3 (pid 12, uid 1000, 'train.py')" for the log.
std::string Describe(const Session& session);
// The context of log lines about the session.
LogContext ContextOf(const Session& session);

}  // namespace pinfeed
