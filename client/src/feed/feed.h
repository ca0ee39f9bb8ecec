// SPDX-License-Identifier: Apache-2.0
// The object behind a pf_feed: an ordered stream of batches that survives restarts of the daemon. In: a spec.
// Out: batches and the position after them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/src/base/deadline.h"
#include "client/src/base/fork_guard.h"
#include "client/src/feed/batch.h"
#include "client/src/feed/feed_warnings.h"
#include "client/src/feed/reconnection.h"
#include "client/src/session/session.h"
#include "client/src/session/session_opener.h"
#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/spec/feed_spec.h"

namespace pinfeed {

// What the first session offers, and all later ones too. The C interface returns pointers to it.
struct FeedConstants {
  std::string fingerprint;
  std::vector<std::string> classes;
  std::vector<std::string> left_out;
  std::string decode;   // DecodeText of the images
  std::string decoder;  // DecodeEngine::kind of what decodes them here
};

struct FeedOptions {
  SessionOptions session;
  std::optional<std::chrono::milliseconds> reconnect_timeout;  // unset: no limit
};

// Purpose: presents a trainer's successive sessions as one stream. Owns: a share of the current session.
// Threads: one at a time; Next blocks. InviteProducer from any thread. Errors: as documented at pf_next. An
// error that a retry cannot resolve is kept and returned again until a Seek succeeds. Invariants: 1. each
// batch is returned once, in order, across sessions (I3); 2. cursor() is always the position after the last
// batch returned.
class Feed {
 public:
  static Result<std::unique_ptr<Feed>> Open(FeedOptions options);
  // Ends the session (Session::End). If batches are held, the last of them does.
  ~Feed();

  // Returns the next batch, with one owner. `timeout` unset: no limit.
  Result<Batch*> Next(std::optional<std::chrono::nanoseconds> timeout);
  // The next batch if it is ready, or null. Does not block, and leaves a lost daemon to Next.
  Result<Batch*> Look();

  // Counts a batch that the caller copied because it holds too many slots. Shown by `pinfeed status`.
  void CountCopied();

  const Cursor& cursor() const { return cursor_; }
  // Open another session and end the current one as ~Feed does. In a group, opens first, so that the other
  // members are not delayed; otherwise ends first, because the new session needs the old one's memory. On
  // failure the feed keeps its position: in the same session, or in a new one if the daemon refused the new
  // position. If there is neither, the next Next reconnects. If the daemon cannot be reached, it does so at
  // the new position, and the call succeeds.
  Status Seek(const Cursor& cursor);
  Status SeekEpoch(uint64_t epoch);

  // InvitationTo of the current session. kUnavailable while there is none.
  Result<std::string> InviteProducer(uint32_t lane) const;

  // The newest session's offer. What pf_feed_info documents as constant is the same in all sessions.
  const FeedOffer& offer() const { return offer_; }
  const FeedConstants& constants() const { return constants_; }
  uint32_t reconnects() const { return reconnects_; }
  int device() const { return opener_.device(); }
  bool in_creator_process() const { return fork_guard_.InCreatorProcess(); }

 private:
  explicit Feed(FeedOptions options)
      : opener_(std::move(options.session)), reconnection_(opener_.address(), options.reconnect_timeout) {}
  // Opens a session at the cursor. On an error nothing changes.
  Status Connect(const Cursor& cursor);
  // Goes on with the session, at its start.
  void Adopt(std::shared_ptr<Session> session);
  Status Reconnect(const Deadline& deadline);
  // Sets the current session, which may be null, and returns the one before. Must precede the end of that.
  std::shared_ptr<Session> SetSession(std::shared_ptr<Session> session);
  // Whether the daemon may open a second session while this one is active.
  bool IsReplaceable() const;
  void LoseSession(const std::string& reason);
  // Returns a batch, or null if none is published.
  Result<Batch*> TakeReady();
  Status WaitForChange(const Deadline& deadline);
  Status AwaitChange(const Deadline& deadline);
  void Advance(const BatchDescriptor& batch);

  SessionOpener opener_;
  const ForkGuard fork_guard_;
  FeedOffer offer_;
  FeedConstants constants_;
  std::shared_ptr<Session> session_;  // null while disconnected; see SetSession
  mutable Mutex invite_mutex_;
  const Session* invite_session_ PF_GUARDED_BY(invite_mutex_) = nullptr;  // session_, for other threads
  Cursor cursor_;
  bool at_epoch_start_ = false;  // true: the next batch is the first of epoch_ahead_
  uint64_t epoch_ahead_ = 0;
  Status final_error_;
  // Since when the caller waits for the next batch, in however many calls, and the end of the last of them.
  SteadyTime waiting_since_{};
  SteadyTime waited_until_{};

  Reconnection reconnection_;
  uint32_t reconnects_ = 0;
  FeedWarnings warnings_;
};

}  // namespace pinfeed
