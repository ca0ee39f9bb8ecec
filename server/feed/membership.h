// SPDX-License-Identifier: Apache-2.0
// The participants of a feed and the batches lent to them. In: participants that attach and depart; filled
// batches; release words. Out: published batches; slots that are free again.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/spec/feed_spec.h"
#include "server/feed/feed_snapshot.h"
#include "server/feed/participant.h"
#include "server/memory/slots.h"
#include "server/order/sampler.h"
#include "server/trace/feed_trace.h"

namespace pinfeed {

// Purpose: decides which participants get a batch, and tracks which of them hold it. A broadcast lends each
// batch to every member. A queue lends it to one member; the batch waits while no member may have it. A
// batcher is a queue whose members get a batch only while they wait for one.
// Borrows: the participants, each from Add to its last Depart, and the trace. Threads: not for concurrent
// use; the feed's lock guards it. Errors: none; release words are only compared for equality. Invariants: 1.
// a slot is taken back only after every participant that it was lent to has released its generation or
// departed; 2. a departed holder keeps the batches that it has taken, and no others.
class Membership {
 public:
  using Clock = std::chrono::steady_clock;

  static std::unique_ptr<Membership> Create(const FeedSpec& spec, uint32_t slot_count, FeedTrace& trace);
  virtual ~Membership() = default;
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  const std::vector<Participant*>& members() const { return members_; }
  const std::vector<Participant*>& holders() const { return holders_; }
  // The earliest start of all members. `otherwise` is the start of members without one.
  Sampler::Start EarliestStart(Sampler::Start otherwise) const;

  void Add(Participant& participant);
  // Removes the participant from the members. Returns how many batches it keeps as a holder.
  size_t Depart(Participant& participant, const Departure& departure);

  // Lends a filled batch. Returns false if no member wants it; its slot is then free.
  virtual bool Lend(const BatchDescriptor& batch, Clock::time_point now) = 0;
  // Queue: publishes waiting batches to the members that may have them, and calls `lent` with each. With
  // `reserve`, the last slots go only to members that have taken all their batches; of a batcher, all slots,
  // and only to members that wait, the longest one first.
  using OnLent = std::function<void(const BatchDescriptor&)>;
  virtual void LendWaiting(Clock::time_point /*now*/, bool /*reserve*/, const OnLent& /*lent*/) {}
  // Queue: whether the slot's batch waits for a member, and the number of such batches.
  virtual bool IsWaiting(uint32_t /*slot*/) const { return false; }
  virtual uint32_t waiting() const { return 0; }
  // Queue: whether a batch may have to be lent (again): it waits, or its member may depart before taking it.
  virtual bool MayLendAgain() const { return false; }

  // Reads the release words of a lent slot. If every holder has released it, returns how long it was lent.
  std::optional<Clock::duration> TakeBack(uint32_t slot, Clock::time_point now);
  // Whether TakeBack would take the slot back. Changes nothing.
  bool IsReleased(uint32_t slot) const;

  // Sets whether members ring the doorbell after each release. Returns false if that was set already.
  bool SetStarved(bool starved);
  // Returns the pages to which batches were published since the last call, once each. Wake their clients when
  // no lock is held: others wait for it meanwhile.
  std::vector<std::shared_ptr<ControlPages>> TakePublished() { return std::exchange(published_, {}); }
  uint64_t ignored_releases() const { return ignored_releases_; }
  // All zeros for a participant that is not in the feed.
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
  // Call after the batch was published to all its members.
  void SetLent(const BatchDescriptor& batch, Clock::time_point now, uint64_t trace_ns);
  // Called for each batch that a departing participant does not keep.
  virtual void GiveBack(uint32_t /*slot*/) {}

  const uint32_t slot_count_;
  std::array<LentBatch, kMaxSlots> lent_;  // indexed by slot
  uint32_t lent_count_ = 0;                // slots that are lent or wait for a member

 private:
  // Reads the release word of one participant's lease.
  bool ReadLease(Participant& participant, uint32_t slot);

  FeedTrace& trace_;
  std::vector<Participant*> members_;
  std::vector<Participant*> holders_;
  std::vector<std::shared_ptr<ControlPages>> published_;  // see TakePublished
  bool starved_ = false;
  uint64_t ignored_releases_ = 0;
};

}  // namespace pinfeed
