// SPDX-License-Identifier: Apache-2.0
#include "server/feed/membership.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "common/base/histogram.h"

namespace pinfeed {
namespace {

// A queue reserves one slot in this many, and at least one, for members that have taken all their batches. So
// a member that is stopped leaves slots to the others and to later members.
constexpr uint32_t kReserveOneSlotIn = 4;

// Every member gets every batch from its start on.
class Broadcast final : public Membership {
 public:
  Broadcast(uint32_t slot_count, FeedTrace& trace) : Membership(slot_count, trace) {}

  bool Lend(const BatchDescriptor& batch, Clock::time_point now) override {
    const Sampler::Start here{batch.epoch, batch.batch_index};
    const uint64_t trace_ns = TraceTime();
    bool lent = false;
    for (Participant* member : members()) {
      if (member->start && here < *member->start) continue;  // it got this batch before it reconnected
      Publish(*member, batch, trace_ns);
      lent = true;
    }
    if (!lent) return false;
    ++lent_count_;
    SetLent(batch, now, trace_ns);
    return true;
  }
};

// Each batch goes to one member. `on_request`: to the one that has waited for it longest.
class Queue final : public Membership {
 public:
  Queue(uint32_t slot_count, FeedTrace& trace, bool on_request)
      : Membership(slot_count, trace), on_request_(on_request) {}

  bool Lend(const BatchDescriptor& batch, Clock::time_point now) override {
    ++lent_count_;
    lent_[batch.slot] = {batch, now};
    waiting_.push_back(batch.slot);
    return true;
  }

  void LendWaiting(Clock::time_point now, bool reserve, const OnLent& lent) override {
    while (!waiting_.empty()) {
      Participant* const taker = NextTaker(reserve);
      if (taker == nullptr) return;
      const BatchDescriptor batch = lent_[waiting_.front()].batch;
      waiting_.pop_front();
      const uint64_t trace_ns = TraceTime();
      Publish(*taker, batch, trace_ns);
      SetLent(batch, now, trace_ns);
      lent(batch);
    }
  }

  bool IsWaiting(uint32_t slot) const override { return std::ranges::find(waiting_, slot) != waiting_.end(); }
  uint32_t waiting() const override { return static_cast<uint32_t>(waiting_.size()); }

  bool MayLendAgain() const override {
    if (!waiting_.empty()) return true;
    if (members().size() < 2) return false;
    return std::any_of(members().begin(), members().end(), [](const Participant* member) {
      return member->Owes() > 0 && member->pages->Stats().taken < member->pages->published();
    });
  }

 private:
  void GiveBack(uint32_t slot) override { waiting_.push_back(slot); }

  // The member that gets the next batch; null while none may have it.
  Participant* NextTaker(bool reserve) const {
    const size_t left = slot_count_ - lent_count_ + waiting_.size();
    const bool reserved = reserve && (on_request_ || left <= std::max(1U, slot_count_ / kReserveOneSlotIn));
    Participant* taker = nullptr;
    std::pair<int64_t, int64_t> least;
    for (Participant* member : members()) {
      if (member->pages->state() != FeedState::kRunning) continue;  // its stream has ended
      // Read once: the client may change them at any time.
      const int64_t waits_since = member->WaitsSince();
      const std::pair load(member->Untaken(), on_request_ && reserve ? waits_since : member->Owes());
      if (reserved && (load.first > 0 || (on_request_ && waits_since == 0))) continue;
      if (taker != nullptr && load >= least) continue;
      taker = member;
      least = load;
    }
    return taker;
  }

  const bool on_request_;
  std::deque<uint32_t> waiting_;  // lent slots whose batches wait for a member, the oldest first
};

}  // namespace

std::unique_ptr<Membership> Membership::Create(const FeedSpec& spec, uint32_t slot_count, FeedTrace& trace) {
  if (spec.sharing == Sharing::kQueue)
    return std::make_unique<Queue>(slot_count, trace, spec.batcher.has_value());
  return std::make_unique<Broadcast>(slot_count, trace);  // an exclusive feed has one member
}

Sampler::Start Membership::EarliestStart(Sampler::Start otherwise) const {
  Sampler::Start earliest = members_.front()->start.value_or(otherwise);
  for (const Participant* member : members_) earliest = std::min(earliest, member->start.value_or(otherwise));
  return earliest;
}

void Membership::Add(Participant& participant) {
  participant.role = Participant::Role::kMember;
  members_.push_back(&participant);
  participant.pages->SetStarved(starved_);
}

size_t Membership::Depart(Participant& participant, const Departure& departure) {
  uint64_t taken = 0;
  if (departure.keeps_taken) {
    taken = participant.pages->Evict(departure.error);
    // It rings for each batch that it keeps, since the others may wait for that slot.
    participant.pages->SetStarved(true);
  }
  trace_.Finish(participant.trace, *participant.pages);
  std::erase(members_, &participant);
  std::erase(holders_, &participant);
  size_t kept = 0;
  for (uint32_t slot = 0; slot < slot_count_; ++slot) {
    Participant::Lease& lease = participant.leases[slot];
    if (!ReadLease(participant, slot)) continue;
    if (lease.sequence < taken) {
      ++kept;
    } else {
      lease.generation = 0;
      GiveBack(slot);
    }
  }
  participant.role = kept > 0 ? Participant::Role::kHolder : Participant::Role::kNone;
  if (kept > 0) holders_.push_back(&participant);
  return kept;
}

void Membership::Publish(Participant& participant, const BatchDescriptor& batch, uint64_t trace_ns) {
  Participant::Lease& lease = participant.leases[batch.slot];
  lease.generation = batch.generation;
  lease.sequence = participant.pages->published();
  lease.taken_at = {};
  trace_.Publishing(participant.trace, *participant.pages, batch, trace_ns);
  const bool published = participant.pages->Publish(batch);
  if (published && std::ranges::find(published_, participant.pages) == published_.end())
    published_.push_back(participant.pages);
}

void Membership::SetLent(const BatchDescriptor& batch, Clock::time_point now, uint64_t trace_ns) {
  lent_[batch.slot] = {batch, now};
  trace_.SlotLent(batch.slot, batch, trace_ns);
}

std::optional<Membership::Clock::duration> Membership::TakeBack(uint32_t slot, Clock::time_point now) {
  if (IsWaiting(slot)) return std::nullopt;
  bool held = false;
  for (Participant* member : members_) held |= ReadLease(*member, slot);
  for (Participant* holder : holders_) held |= ReadLease(*holder, slot);
  if (held) return std::nullopt;
  --lent_count_;
  trace_.SlotReleased(slot);
  return now - lent_[slot].since;
}

bool Membership::ReadLease(Participant& participant, uint32_t slot) {
  Participant::Lease& lease = participant.leases[slot];
  if (lease.generation == 0) return false;
  const uint64_t word = participant.pages->Released(slot);
  const uint64_t seen = std::exchange(lease.seen_word, word);
  if (word == lease.generation) {
    lease.generation = 0;
    return false;
  }
  if (word != seen) {
    ++participant.ignored_releases;
    ++ignored_releases_;
  }
  return true;
}

bool Membership::IsReleased(uint32_t slot) const {
  const auto has_released = [slot](const Participant* participant) { return !participant->Holds(slot); };
  return !IsWaiting(slot) && std::ranges::all_of(members_, has_released) &&
         std::ranges::all_of(holders_, has_released);
}

bool Membership::SetStarved(bool starved) {
  if (std::exchange(starved_, starved) == starved) return false;
  for (Participant* member : members_) member->pages->SetStarved(starved);
  return true;
}

ParticipantSnapshot Membership::Snapshot(const Participant& participant, Clock::time_point now) const {
  ParticipantSnapshot snapshot;
  if (participant.role == Participant::Role::kNone) return snapshot;
  snapshot.ignored_releases = participant.ignored_releases;
  snapshot.stall_ns = participant.stalls.sums();
  if (participant.recent.known()) snapshot.recent = participant.recent.shares();
  for (uint32_t slot = 0; slot < slot_count_; ++slot) {
    // Released slots do not count, even if the feed has not read the word yet: clients rarely ring.
    if (!participant.Holds(slot)) continue;
    ++snapshot.slots_lent;
    Clock::time_point since = participant.leases[slot].taken_at;
    if (since == Clock::time_point()) since = std::max(lent_[slot].since, participant.seen_taken_at);
    snapshot.oldest_lease_ns = std::max(snapshot.oldest_lease_ns, Nanoseconds(now - since));
  }
  return snapshot;
}

}  // namespace pinfeed
