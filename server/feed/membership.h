// SPDX-License-Identifier: Apache-2.0
// The participants of a feed and the batches lent to them. In: participants that come and depart; filled
// batches; release words. Out: published batches; slots that nobody holds any more.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/spec/feed_spec.h"
#include "server/feed/feed_snapshot.h"
#include "server/feed/participant.h"
#include "server/memory/slots.h"
#include "server/order/sampler.h"
#include "server/trace/feed_trace.h"

namespace pinfeed {

// Purpose: decides which participants get a batch, and knows who holds it. A broadcast lends each batch to
// every member; a queue lends it to one, and keeps it waiting while no member may have it. Borrows: the
// participants, each from Add to its last Depart, and the trace. Threads: not for concurrent use; the feed's
// lock guards it. Errors: none; release words are compared for equality only. Invariants: 1. a slot is taken
// back only when every participant that it was lent to has released its generation or departed; 2. a
// departed holder keeps what it took, and nothing else.
class Membership {
 public:
  using Clock = std::chrono::steady_clock;

  static std::unique_ptr<Membership> Create(Sharing sharing, uint32_t slot_count, FeedTrace& trace);
  virtual ~Membership() = default;
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  const std::vector<Participant*>& members() const { return members_; }
  const std::vector<Participant*>& holders() const { return holders_; }
  // The earliest start of all members; `otherwise` is the start of those that name none.
  Sampler::Start EarliestStart(Sampler::Start otherwise) const;

  void Add(Participant& participant);
  // Ends its part. Returns how many batches it keeps, as a holder.
  size_t Depart(Participant& participant, const Departure& departure);

  // Lends a filled batch. False: no member wants it, and its slot is free.
  virtual bool Lend(const BatchDescriptor& batch, Clock::time_point now) = 0;
  // Queue: publishes waiting batches to the members that may have them. `reserve`: the last slots go only to
  // members that have taken all that they were lent.
  virtual void LendWaiting(Clock::time_point /*now*/, bool /*reserve*/) {}
  // Queue: whether the slot's batch waits for a member, and how many do.
  virtual bool IsWaiting(uint32_t /*slot*/) const { return false; }
  virtual uint32_t waiting() const { return 0; }
  // Queue: whether a batch may still have to be lent again, because it waits or its member may depart without
  // having taken it.
  virtual bool MayLendAgain() const { return false; }

  // Reads the release words of a lent slot. How long it was lent, if nobody holds it any more.
  std::optional<Clock::duration> TakeBack(uint32_t slot, Clock::time_point now);
  // Whether TakeBack would take the slot back. Changes nothing.
  bool IsReleased(uint32_t slot) const;

  // Asks the members to ring after each release, or not to. False when that was so already.
  bool SetStarved(bool starved);
  uint64_t ignored_releases() const { return ignored_releases_; }
  // Zeros for one that has no part in the feed.
  ParticipantSnapshot Snapshot(const Participant& participant, Clock::time_point now) const;

 protected:
  struct LentBatch {
    BatchDescriptor batch{};
    Clock::time_point since;
  };

  Membership(uint32_t slot_count, FeedTrace& trace) : slot_count_(slot_count), trace_(trace) {}
  // The time for Publish and SetLent; 0 unless the feed is traced.
  uint64_t TraceTime() const { return trace_.On() ? TraceClockNs() : 0; }
  void Publish(Participant& participant, const BatchDescriptor& batch, uint64_t trace_ns);
  // The batch has been published to all that get it now.
  void SetLent(const BatchDescriptor& batch, Clock::time_point now, uint64_t trace_ns);
  // A participant departs without its batch.
  virtual void GiveBack(uint32_t /*slot*/) {}

  const uint32_t slot_count_;
  std::array<LentBatch, kMaxSlots> lent_;  // by slot
  uint32_t lent_count_ = 0;                // slots lent, or waiting for a member

 private:
  // Reads the release word of one participant's lease.
  bool ReadLease(Participant& participant, uint32_t slot);

  FeedTrace& trace_;
  std::vector<Participant*> members_;
  std::vector<Participant*> holders_;
  bool starved_ = false;
  uint64_t ignored_releases_ = 0;
};

}  // namespace pinfeed
