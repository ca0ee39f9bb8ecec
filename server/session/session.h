// SPDX-License-Identifier: Apache-2.0
// One client process and its part in a feed.
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
#include "server/memory/arena.h"
#include "server/memory/client_process.h"
#include "server/net/peer.h"
#include "server/session/token.h"

namespace pinfeed {

class FeedTable;

enum class SessionState : uint8_t {
  kPending,   // opened; its lifeline is awaited
  kAttached,  // served
  kOrphaned,  // its lifeline hung up, its process lives: nothing more is published, its memory stays charged
  kEvicted,   // nothing more is published; its group waits for batches that it still holds
  kLeft,      // the same, at its client's wish
};
const char* SessionStateName(SessionState state);

// Purpose: one participant of a feed, from FeedTable::Join until its memory may go. Owns: its control pages
// and a share of the feed. Borrows: the feed table, which outlives it. Threads: `state` from any thread;
// `taking_part` is guarded by the feed table's lock, the base class by the feed's; `mapped` is written by
// the session loop; the rest is constant once the session is in the session table. Invariants: 1. the feed
// and its memory live until the last session is destroyed; 2. a member of the feed exactly while kAttached.
struct Session : Participant {
  Session(FeedTable& feed_table, std::shared_ptr<Feed> joined) : table(feed_table), feed(std::move(joined)) {}
  ~Session();

  // What its client maps: the feed's memory, or the part of it on the client's GPU.
  const Arena& arena() const { return part != nullptr ? *part : feed->arena(); }
  bool is_shared() const { return feed->spec().sharing != Sharing::kExclusive; }

  FeedTable& table;
  const std::shared_ptr<Feed> feed;
  uint64_t id = 0;
  Peer peer;
  std::string client_name;
  const Token token = NewToken();
  const std::chrono::steady_clock::time_point opened = std::chrono::steady_clock::now();
  const Arena* part = nullptr;           // of the feed's memory
  std::optional<ClientProcess> process;  // may have device memory mapped
  std::string fallback;                  // why its backend is no better one, if a better one was asked for
  std::string trace_id;                  // of the call that opened it; empty: none
  std::atomic<SessionState> state{SessionState::kPending};
  bool mapped = false;      // its client may have the memory mapped
  bool taking_part = true;  // counts as a user of its feed and group
};

// Nothing is published to it any more, and the daemon's end does not wait for it.
bool HasLeft(const Session& session);
// It takes no part any more, and may still hold batches of its group.
bool MayHold(const Session& session);
// "session 3 (pid 12, uid 1000, 'train.py')", for the log.
std::string Describe(const Session& session);
// For log lines about the session.
LogContext ContextOf(const Session& session);

}  // namespace pinfeed
