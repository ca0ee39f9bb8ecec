// SPDX-License-Identifier: Apache-2.0
// One ordered stream of batches. In: plans from the sampler, pieces that a producer fills, releases from the
// sessions. Out: published batches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/spec/feed_spec.h"
#include "server/feed/bad_samples.h"
#include "server/feed/batch_cycle.h"
#include "server/feed/feed_parts.h"
#include "server/feed/feed_snapshot.h"
#include "server/feed/participant.h"
#include "server/loading/batch_fill.h"
#include "server/loading/batch_producer.h"
#include "server/memory/arena.h"
#include "server/order/sampler.h"

namespace pinfeed {

// Purpose: keeps its slots full. At each event it advances its BatchCycle under its lock, and afterwards
// requests pieces from the producer and reports failures. Owns: producer, arena, the cycle.
// Borrows: its participants (each from Attach to its last Depart). Threads: every method from any thread; one
// mutex, never held while samples are loaded or anything blocks.
// Errors: with on_bad_sample = fail, a bad sample fails the feed. Published batches stay valid; then sessions
// get the error. A failed delivery drains the feed.
// Invariants: I1: a slot is filled only after every session that it was lent to has released its generation;
// I2, I3: batches are published in plan order, complete, and once per session; I5: nothing that is allocated
// for a batch outlives it; I6: release words are only compared for equality.
class Feed final : public ReleaseReader, public BatchFill::Owner {
 public:
  explicit Feed(FeedParts parts);

  uint64_t id() const { return parts_.id; }
  const FeedSpec& spec() const { return parts_.spec; }
  const std::string& decode_note() const { return parts_.decode_note; }
  const std::string& resident_note() const { return parts_.resident_note; }
  const BatchLayout& layout() const { return parts_.layout; }
  const Sampler& sampler() const { return parts_.sampler; }
  const Arena& arena() const { return *parts_.arena; }
  Arena& arena() { return *parts_.arena; }
  // Whether it neither drains nor has failed: it publishes batches, waits to begin, or has published all.
  bool Serves() const PF_EXCLUDES(mutex_);
  // The batch that will be published next.
  Sampler::Start Upcoming() const PF_EXCLUDES(mutex_);
  // Whether its group has ever been complete.
  bool HasBegun() const PF_EXCLUDES(mutex_);
  const BatchProducer& producer() const { return *parts_.producer; }
  const DatasetInfo& dataset() const { return parts_.producer->dataset(); }
  // Shared by everything that uses the feed, such as requests, copies and readers. It may outlive the feed,
  // and shows when the last user is done.
  std::shared_ptr<const FeedShare> share() const { return share_.share(); }

  // Adds a member, which gets batches from its start on. The feed begins, at the earliest start, once
  // spec.group_size members are attached. A member that joins later gets what is published from then on, but
  // nothing from before its start. kFailedPrecondition if the batch of its start has already been published,
  // or the feed accepts no more members. A queue instead goes back: it publishes the batches between the late
  // member's start and the feed's own start, which no member has got from this feed.
  Status Attach(Participant& participant) PF_EXCLUDES(mutex_);
  // Ends a participation. Batches that the participant does not keep count as released; in a queue they go to
  // another member. Returns how many it keeps. Does nothing if it is not in the feed, or if it is a holder
  // and `departure` would let it keep its batches.
  size_t Depart(Participant& participant, const Departure& departure) PF_EXCLUDES(mutex_);

  // Reads the release words and continues filling. Call it after a doorbell. For a queue, call it
  // periodically as well, since taking a batch rings no doorbell.
  void ReadReleases() override PF_EXCLUDES(mutex_);
  // Plans no more batches. Sessions see kDraining once the batches in progress are published.
  void Drain() PF_EXCLUDES(mutex_);
  // Like Drain, but discards the batches in progress. Calls `at_rest` once, without a lock, when no worker
  // and no copy uses the arena any more. That may be on any of their threads, even before Stop returns, or
  // never if storage hangs. Precondition of the destructor: it was called. Call Stop only once.
  void Stop(std::function<void()> at_rest) PF_EXCLUDES(mutex_);
  uid_t owner() const { return parts_.owner; }
  // Observes the clients for a trace, without changing anything. `last` also records what is still going on.
  void ObserveForTrace(bool last) PF_EXCLUDES(mutex_);

  FeedSnapshot Snapshot() PF_EXCLUDES(mutex_);
  // All zeros for a participant that is not in the feed.
  ParticipantSnapshot SnapshotOf(const Participant& participant) const PF_EXCLUDES(mutex_);

 private:
  // Work that a locked step leaves to be done without the lock.
  struct AfterUnlock {
    BatchCycle::Work work;
    std::function<void()> at_rest = {};  // empty: nothing
  };

  AfterUnlock AdvanceLocked() PF_REQUIRES(mutex_);
  void Do(AfterUnlock after) PF_EXCLUDES(mutex_);
  // Hands them to the producer. Batches that are filled before it returns are published together.
  void Request(BatchCycle::Requests requests) PF_EXCLUDES(mutex_);
  void OnPieceMemory() override PF_EXCLUDES(mutex_);
  void OnFilled(uint32_t slot, FillResult result) override PF_EXCLUDES(mutex_);
  void OnDelivered(uint32_t slot, const Status& status) override PF_EXCLUDES(mutex_);
  bool OnReplace(uint32_t slot) override PF_EXCLUDES(mutex_);

  const FeedShareUse share_;  // first, so that it is destroyed after the memory
  const FeedParts parts_;
  FillContext filling_;
  BadSampleLog bad_sample_log_;

  mutable Mutex mutex_;
  BatchCycle cycle_ PF_GUARDED_BY(mutex_);
  std::function<void()> at_rest_ PF_GUARDED_BY(mutex_);  // see Stop
};

}  // namespace pinfeed
