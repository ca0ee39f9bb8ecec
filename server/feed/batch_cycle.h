// SPDX-License-Identifier: Apache-2.0
// The way of a feed's batches through its slots: planned, filled, published, lent, free again. In: members,
// filled slots, release words. Out: requests for pieces, and published batches.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "server/feed/bad_samples.h"
#include "server/feed/batch_planner.h"
#include "server/feed/batch_queue.h"
#include "server/feed/feed_parts.h"
#include "server/feed/feed_snapshot.h"
#include "server/feed/membership.h"
#include "server/feed/stall_account.h"
#include "server/loading/batch_fill.h"
#include "server/memory/arena.h"
#include "server/memory/slots.h"
#include "server/order/sampler.h"
#include "server/trace/feed_trace.h"

namespace pinfeed {

// Purpose: decides what a feed does next. It calls nothing that blocks, and leaves to its caller what must
// not happen under a lock. Owns: slot states, membership, planned batches. Borrows: the parts, the filling
// context and the two receivers of events, which outlive it; its participants, each from Attach to its last
// Depart. Threads: one at a time; the feed's lock guards it. Errors: a failed feed publishes nothing more,
// and its members get the error; see Feed. Invariants: see Feed.
class BatchCycle {
 public:
  using Requests = std::vector<std::shared_ptr<PieceRequest>>;
  // What is to be done without the lock after a step.
  struct Work {
    std::vector<std::shared_ptr<ControlPages>> published;  // see Membership::TakePublished
    Requests requests;
    Status failure;  // set if the feed has just failed
  };

  BatchCycle(const FeedParts& parts, FillContext& filling, BatchFill::Owner& owner, ReleaseReader& reader);
  ~BatchCycle();

  // These are Feed's methods. Call Advance after those that change something.
  bool Serves() const { return phase_ != Phase::kDraining && phase_ != Phase::kFailed; }
  bool HasBegun() const { return phase_ != Phase::kWaiting; }
  Sampler::Start Upcoming() const;
  Status Attach(Participant& participant);
  size_t Depart(Participant& participant, const Departure& departure);
  void Drain() { stopping_ = true; }
  void ObserveForTrace(bool last);
  FeedSnapshot Snapshot();
  ParticipantSnapshot SnapshotOf(const Participant& participant) const;

  // Takes released slots back, publishes finished batches, plans batches into free slots, and requests pieces
  // as far as there is memory.
  Work Advance();
  // Whether no slot is being filled.
  bool AtRest() const { return slots_.CountIn(SlotState::kFilling) == 0; }
  // Memory for another piece may be free. In any phase, since every planned batch is filled to its end.
  Requests RequestMore();
  // See BatchFill::Owner.
  void OnFilled(uint32_t slot, FillResult result);
  void OnDelivered(uint32_t slot, const Status& status);
  // See PieceRequest::Replace.
  bool Replace(uint32_t slot);

 private:
  enum class Phase { kWaiting, kRunning, kDraining, kEnded, kFailed };

  void CollectReleases();
  void PublishReady();
  // For a queue: publishes waiting batches to the members that may have them.
  void LendWaiting();
  void Plan();
  // Whether another free slot would find no thread to fill it. The next batch that is filled has the releases
  // read, so they need no doorbell.
  bool Busy() const;
  // Takes a slot for the next batch; nothing if none is free but those that are kept, unless no batch would
  // be under way.
  std::optional<uint32_t> TakeSlot();
  // How many free slots are kept for moves of the batch that all others wait for: those that are filled
  // behind it wait for it, too, and free none.
  uint32_t KeptSlots() const;
  // A slot is filled whose batch was moved to another one: moves it back, unless that one was filled before.
  bool MoveBack(uint32_t slot);
  // Skips to the first batch that a session wants, once no earlier one is in progress. Returns whether the
  // planner is at that batch.
  bool SkipUnwanted();
  void SetStarved(bool starved);
  void Enter(Phase phase);
  // Attributes the time since the last change to what the feed was doing. Call it before each change.
  void Account();
  char SlotLetter(uint32_t slot) const;

  const FeedParts& parts_;
  FillContext& filling_;
  BatchFill::Owner& owner_;
  ReleaseReader& reader_;
  FeedTrace trace_;
  Phase phase_ = Phase::kWaiting;
  bool stopping_ = false;  // no more batches are planned
  Status error_;
  Slots slots_;
  const std::unique_ptr<Membership> membership_;
  BatchPlanner planner_;
  BatchQueue batches_;
  BadSamples bad_samples_;
  FeedSnapshot counters_;  // only its counters are used
  StallAccount stalls_;
};

}  // namespace pinfeed
