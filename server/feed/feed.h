// SPDX-License-Identifier: Apache-2.0
// One ordered stream of batches. In: plans from the sampler, pieces that a producer fills, releases from the
// sessions. Out: published batches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/spec/feed_spec.h"
#include "server/feed/bad_samples.h"
#include "server/feed/batch_planner.h"
#include "server/feed/batch_queue.h"
#include "server/feed/feed_snapshot.h"
#include "server/feed/membership.h"
#include "server/feed/stall_account.h"
#include "server/loading/batch_fill.h"
#include "server/loading/batch_producer.h"
#include "server/memory/arena.h"
#include "server/memory/control_pages.h"
#include "server/memory/slots.h"
#include "server/order/sampler.h"
#include "server/trace/feed_trace.h"

namespace pinfeed {

// Purpose: keeps its slots full: takes free slots, plans batches, requests their pieces from the producer,
// publishes finished ones in order, takes released ones back. Owns: producer, arena, slot states. Borrows:
// its participants (each from Attach to its last Depart). Threads: every method from any thread; one mutex,
// never held while samples are loaded or anything blocks. Errors: a bad sample under on_bad_sample = fail
// fails the feed: published batches stay valid, then sessions see the error. A failed delivery drains it.
// Invariants: I1 a slot is filled only when every session it was lent to released its generation; I2, I3:
// published in plan order, complete, once a session; I5: nothing is allocated a batch that outlives it; I6:
// release words are only compared for equality.
class Feed final : public ReleaseReader, public BatchFill::Owner {
 public:
  struct Parts {
    uint64_t id = 0;
    FeedSpec spec;
    BatchLayout layout;
    Sampler sampler;
    std::unique_ptr<BatchProducer> producer;
    std::unique_ptr<Arena> arena;
    uid_t owner = 0;           // of all its sessions
    Tracer* tracer = nullptr;  // outlives the feed; null: it is never traced
  };
  explicit Feed(Parts parts);
  ~Feed() override;

  uint64_t id() const { return parts_.id; }
  const FeedSpec& spec() const { return parts_.spec; }
  const BatchLayout& layout() const { return parts_.layout; }
  const Sampler& sampler() const { return parts_.sampler; }
  const Arena& arena() const { return *parts_.arena; }
  Arena& arena() { return *parts_.arena; }
  // Whether it neither drains nor has failed: it gives batches, will, or has given all.
  bool Serves() const PF_EXCLUDES(mutex_);
  // The batch that is published next, as things stand.
  Sampler::Start Upcoming() const PF_EXCLUDES(mutex_);
  // Whether its group has ever been complete.
  bool HasBegun() const PF_EXCLUDES(mutex_);
  const BatchProducer& producer() const { return *parts_.producer; }
  const DatasetInfo& dataset() const { return parts_.producer->dataset(); }
  // May outlive the feed: its requests, copies and readers own the share too. Lets waiters see the last user
  // go.
  std::shared_ptr<const FeedShare> share() const { return share_.share(); }

  // Adds a member, which gets batches from its start on. The feed begins, at the earliest start, once
  // spec.group_size members are attached. One that joins later gets what is published from then on, no
  // earlier than its start; kFailedPrecondition when its start has already been published, or the feed takes
  // no more members. A queue instead goes back for the batches between the start of a late member and its
  // own, which no member has had here.
  Status Attach(Participant& participant) PF_EXCLUDES(mutex_);
  // Ends a participant's part. What it does not keep counts as released; in a queue it goes to another
  // member. Returns how many batches it keeps. Does nothing for one that has no part, or that keeps batches
  // already.
  size_t Depart(Participant& participant, const Departure& departure) PF_EXCLUDES(mutex_);

  // Looks at the release words and goes on filling: after a doorbell. A queue wants it from time to time too,
  // since nobody rings when a batch is taken.
  void ReadReleases() override PF_EXCLUDES(mutex_);
  // No new batches: sessions see kDraining once what was being filled is published.
  void Drain() PF_EXCLUDES(mutex_);
  // As Drain, and nobody wants what is being filled. Calls `at_rest` once, when no worker and no copy touches
  // the arena any more, which storage that does not answer may put off for ever: on the thread that saw to
  // that last, maybe before Stop returns, without a lock. Destruction waits for it; not again before that.
  void Stop(std::function<void()> at_rest) PF_EXCLUDES(mutex_);
  uid_t owner() const { return parts_.owner; }
  // While somebody traces: sees what its clients do meanwhile, and changes nothing. `last`: and draws what
  // still goes on.
  void ObserveForTrace(bool last) PF_EXCLUDES(mutex_);

  FeedSnapshot Snapshot() PF_EXCLUDES(mutex_);
  // Zeros for one that has no part in the feed.
  ParticipantSnapshot SnapshotOf(const Participant& participant) const PF_EXCLUDES(mutex_);

 private:
  enum class Phase { kWaiting, kRunning, kDraining, kEnded, kFailed };
  // What follows a locked step, and is done without the lock.
  struct AfterUnlock {
    std::vector<std::shared_ptr<PieceRequest>> requests;
    std::function<void()> at_rest;  // empty: nothing
    Status failure;                 // with which the feed has failed just now
  };

  // Takes back what was released, publishes what is ready, plans into what is free, begins what there is
  // memory for.
  AfterUnlock AdvanceLocked() PF_REQUIRES(mutex_);
  void CollectReleasesLocked() PF_REQUIRES(mutex_);
  void PublishReadyLocked() PF_REQUIRES(mutex_);
  BatchDescriptor DescriptorOfLocked(uint32_t slot) const PF_REQUIRES(mutex_);
  // Of a queue: publishes the batches that wait for a member to those that may have them.
  void LendWaitingLocked() PF_REQUIRES(mutex_);
  void PlanLocked() PF_REQUIRES(mutex_);
  // Goes on to the first batch that a session wants, once no earlier one is in flight. Returns whether the
  // planner stands there.
  bool SkipUnwantedLocked() PF_REQUIRES(mutex_);
  Sampler::Start UpcomingLocked() const PF_REQUIRES(mutex_);
  // Whatever the phase: a batch that is planned ends its filling.
  void RequestPiecesLocked(AfterUnlock& after) PF_REQUIRES(mutex_);
  void SetStarvedLocked(bool starved) PF_REQUIRES(mutex_);
  void EnterLocked(Phase phase) PF_REQUIRES(mutex_);
  // Attributes the time since the last change to what the feed was doing until now. Call it before a change.
  void AccountLocked() PF_REQUIRES(mutex_);
  char SlotLetterLocked(uint32_t slot) const PF_REQUIRES(mutex_);
  void Do(AfterUnlock after) PF_EXCLUDES(mutex_);
  void OnPieceFilled() override;
  void OnPieceMemory() override PF_EXCLUDES(mutex_);
  void OnFilled(uint32_t slot, FillResult result) override PF_EXCLUDES(mutex_);
  void OnDelivered(uint32_t slot, const Status& status) override PF_EXCLUDES(mutex_);

  const FeedShareUse share_;  // first: the memory is gone before it
  Parts parts_;
  FeedTrace trace_;  // notes guarded by mutex_
  BatchFill::Context filling_;
  BadSamples bad_samples_;  // all but Log guarded by mutex_
  BatchQueue batches_;      // all but OnPieceFilled guarded by mutex_

  mutable Mutex mutex_;
  Phase phase_ PF_GUARDED_BY(mutex_) = Phase::kWaiting;
  bool stopping_ PF_GUARDED_BY(mutex_) = false;          // plan nothing more
  std::function<void()> at_rest_ PF_GUARDED_BY(mutex_);  // see Stop
  Status error_ PF_GUARDED_BY(mutex_);
  Slots slots_ PF_GUARDED_BY(mutex_);
  const std::unique_ptr<Membership> membership_ PF_GUARDED_BY(mutex_);
  BatchPlanner planner_ PF_GUARDED_BY(mutex_);
  FeedSnapshot counters_ PF_GUARDED_BY(mutex_);  // the counting fields only
  StallAccount stalls_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
