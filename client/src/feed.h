// SPDX-License-Identifier: Apache-2.0
// What a pf_feed is: an ordered stream of batches that outlives the daemon's restarts. In: a spec. Out:
// batches and the position behind them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/src/backoff.h"
#include "client/src/batch.h"
#include "client/src/daemon.h"
#include "client/src/fork_guard.h"
#include "client/src/session.h"
#include "common/base/result.h"
#include "common/spec/feed_spec.h"

namespace pinfeed {

struct FeedOptions {
  std::string address;
  OpenRequest request;
  int device = -1;                  // the caller's GPU that request.gpu_uuid names
  std::shared_ptr<const void> gpu;  // this process's hold of it
  Status gpu_error;                 // else: why there is none
  std::chrono::milliseconds open_timeout{10'000};
  std::optional<std::chrono::milliseconds> reconnect_timeout;  // unset: for ever
};

// Purpose: the sessions of one trainer, one after the other, as one stream. Owns a share of the present
// session. Threads: one at a time; Next blocks. Errors: as documented at pf_next; one that no later try can
// cure is remembered and given again until a Seek succeeds. Invariants: 1. each batch is given once, in
// order, over any number of sessions (I3); 2. cursor() is the position behind the last batch given, whatever
// happened since.
class Feed {
 public:
  static Result<std::unique_ptr<Feed>> Open(FeedOptions options);
  // Waits until the daemon has taken the memory back, at most 2 s, and on a GPU until the streams are done
  // with it, at most 10 s (Session::CloseAndWait). While batches are held, only until a group has let it go:
  // the last of them ends the session.
  ~Feed();
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  // The next batch, with one owner. `timeout` unset: no limit.
  Result<Batch*> Next(std::optional<std::chrono::nanoseconds> timeout);

  // For `pinfeed status`: the caller copied a batch because it holds too many slots.
  void CountCopied();

  const Cursor& cursor() const { return cursor_; }
  // Open another session and end the present one as ~Feed does; in this order when others share the feed, who
  // go on meanwhile, else the other way round, as the new one wants the old one's memory. On failure the feed
  // stays where it was: in the same session, in a new one if the daemon refused the position, else the next
  // Next looks for the daemon.
  Status Seek(const Cursor& cursor);
  Status SeekEpoch(uint64_t epoch);

  // Of the newest session: the parts that pf_feed_info documents as constant are the same in all.
  const FeedOffer& offer() const { return offer_; }
  const std::string& fingerprint() const { return fingerprint_; }
  const std::vector<std::string>& classes() const { return classes_; }
  uint32_t reconnects() const { return reconnects_; }
  int device() const { return device_; }
  bool in_owner() const { return fork_guard_.InOwner(); }

 private:
  struct Deadline;

  explicit Feed(FeedOptions options) : options_(std::move(options)), device_(options_.device) {}
  // The daemon's offer, attached to: the best that works here. Or one that says end_first, if it replaces
  // one.
  Result<FeedOffer> Attach(const std::optional<Cursor>& cursor, uint64_t replaces, SteadyTime deadline);
  void TellFallback(const FeedOffer& offer) const;
  // The daemon's refusal, with what it cannot know: why this process does not have the GPU.
  Status WithGpuError(const Status& refused) const;
  // A new session, at the cursor; on an error all is as it was. `replaces`: see OpenRequest; then it may
  // answer false, for nothing done, as that session has to end first.
  Result<bool> Connect(const std::optional<Cursor>& cursor, uint64_t replaces = 0);
  Result<bool> ConnectBy(SteadyTime deadline, const std::optional<Cursor>& cursor, uint64_t replaces = 0);
  // The first session; waits for a daemon that stops to be replaced by the next.
  Status ConnectFirst();
  Status Reconnect(const Deadline& deadline);
  Status WaitForRetry(const Deadline& deadline);
  // Connect, in place of the present session.
  Result<bool> Replace(const Cursor& cursor);
  // Whether the daemon may make another session while this one is served.
  bool IsReplaceable() const;
  // To be let go of then. Waits for the daemon, 2 s at most; see ~Feed.
  static void EndSession(const std::shared_ptr<Session>& session);
  void LoseSession(const std::string& reason);
  // A batch, or nothing when none is published.
  Result<Batch*> TakeReady();
  void WarnOfEmptyBatch(const BatchDescriptor& batch);
  Status WaitForNews(const Deadline& deadline);
  void WarnIfAllHeld(std::chrono::nanoseconds waited);
  void Advance(const BatchDescriptor& batch);

  FeedOptions options_;
  const int device_;  // the caller's GPU; -1: the host was asked for
  std::vector<std::pair<Backend, std::string>> failed_backends_;
  const ForkGuard fork_guard_;
  FeedOffer offer_;
  std::string fingerprint_;  // set once, as the C interface hands out its pointer for the feed's life
  std::vector<std::string> classes_;  // likewise
  std::shared_ptr<Session> session_;  // null while the daemon is lost
  Cursor cursor_;
  bool at_epoch_start_ = false;  // the next batch is the first of epoch_ahead_
  uint64_t epoch_ahead_ = 0;
  Status final_error_;
  bool stopping_ = false;  // the daemon that was last tried said that it stops

  uint32_t reconnects_ = 0;
  SteadyTime lost_at_{};
  SteadyTime next_try_{};
  Backoff backoff_;
  Status last_try_;
  SteadyTime next_warning_{};
  bool warned_of_empty_ = false;
};

}  // namespace pinfeed
