// SPDX-License-Identifier: Apache-2.0
// What status, metrics and traces show of a feed: where its time went, and what its slots are in.
#include <algorithm>
#include <array>
#include <utility>

#include "server/feed/feed.h"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

// Samples that tell nothing for so long wait for their source: no decoding takes that long.
constexpr uint64_t kSurelyReadingNs = 2'000'000'000;

// The name of a configured dataset, else the last part of its path.
std::string NameOf(const DatasetSpec& spec) {
  if (!spec.name.empty()) return spec.name;
  const size_t end = spec.path.find_last_not_of('/');
  if (end == std::string::npos) return "/";
  const size_t slash = spec.path.find_last_of('/', end);
  return spec.path.substr(slash + 1, end - slash);
}

// Waiting that is over, and that which goes on.
uint64_t WaitedNs(const ControlPages::ClientStats& stats, uint64_t now_ns) {
  const bool waiting = stats.waiting_since_ns != 0 && stats.waiting_since_ns < now_ns;
  return stats.wait_ns + (waiting ? now_ns - stats.waiting_since_ns : 0);
}

}  // namespace

void Feed::AccountLocked() {
  const auto now = Clock::now();
  const uint64_t elapsed = Nanoseconds(now - accounted_);
  accounted_ = now;
  // The trainers' own account of their waiting. It is untrusted: since the last look, no more than the time
  // there was.
  uint64_t waited = 0;
  for (Participant* member : membership_->members()) {
    const uint64_t total = WaitedNs(member->pages->Stats(), Nanoseconds(now.time_since_epoch()));
    member->waited_now_ns = total > member->waited_ns ? std::min(total - member->waited_ns, elapsed) : 0;
    member->waited_ns = total;
    waited += member->waited_now_ns;
  }
  if (phase_ != Phase::kRunning) return;
  counters_.running_ns += elapsed;
  waited /= std::max<size_t>(1, membership_->members().size());
  counters_.starved_ns += waited;
  AccountStallLocked(elapsed, waited);
}

// The batch that comes next tells the cause: whoever waits, waits for it.
void Feed::AccountStallLocked(uint64_t elapsed, uint64_t waited) {
  const bool full = slots_.CountIn(SlotState::kFree) == 0 && slots_.CountIn(SlotState::kFilling) == 0;
  if (full) counters_.full_ns += elapsed;
  // All memory to fill is taken, and what is in it is loaded: the copies hold up even what is not loaded yet.
  const bool copying = !unrequested_.empty() && pieces_filling_.load(std::memory_order_relaxed) == 0;
  const bool loading = !in_flight_.empty() && !batches_[in_flight_.front()].delivering && !copying;
  const StallCause known = in_flight_.empty() ? StallCause::kConsumer : StallCause::kCopy;
  const auto note = [loading, known](StallSums& stalls, uint64_t ns) {
    if (loading) {
      stalls.Defer(ns);
    } else {
      stalls.Add(known, ns);
    }
  };
  if (full) {
    stalls_.Add(StallCause::kConsumer, elapsed);
  } else {
    note(stalls_, waited);
  }
  uint32_t most_held = 0;
  if (full) {
    for (const Participant* member : membership_->members())
      most_held = std::max(most_held, member->CountHeld());
    if (!membership_->holders().empty()) most_held = slots_.count();
  }
  for (Participant* member : membership_->members()) {
    if (full && member->CountHeld() < most_held) {
      // What it waited, it waited for who has more (it may itself have the batch that it did last).
      member->stalls.Add(StallCause::kGroup, member->waited_now_ns);
      if (member->Owes() > 0) member->stalls.Add(StallCause::kConsumer, elapsed - member->waited_now_ns);
    } else if (full && member->Owes() > 0) {
      member->stalls.Add(StallCause::kConsumer, elapsed);
    } else {
      note(member->stalls, member->waited_now_ns);
    }
  }
  unsettled_ns_ += elapsed;
  SettleStallLocked();
}

void Feed::SettleStallLocked() {
  const ProducerTimes times = parts_.producer->times();
  const StallSums::Work all{0, share_->worked_ns.load(std::memory_order_relaxed), times.read_ns,
                            times.decode_ns};
  StallSums::Work work{unsettled_ns_, all.worked_ns - settled_.worked_ns, all.read_ns - settled_.read_ns,
                       all.decode_ns - settled_.decode_ns};
  if (work.worked_ns == 0 && share_->running.load(std::memory_order_relaxed) != 0) {
    if (unsettled_ns_ < kSurelyReadingNs) return;
    work.worked_ns = work.elapsed_ns;
  }
  stalls_.Settle(work);
  const Fading span(unsettled_ns_);
  recent_.Add(span, stalls_.sums());
  for (Participant* member : membership_->members()) {
    member->stalls.Settle(work);
    member->recent.Add(span, member->stalls.sums());
  }
  settled_ = all;
  unsettled_ns_ = 0;
}

char Feed::SlotLetterLocked(uint32_t slot) const {
  switch (slots_.state(slot)) {
    case SlotState::kFree:
      return 'f';
    case SlotState::kFilling:
      return batches_[slot].delivering ? 'c' : 'w';
    case SlotState::kReady:
      return 'r';
    case SlotState::kLent:
      return membership_->IsWaiting(slot) ? 'r' : 'l';
  }
  return '?';
}

void Feed::LookForTrace(bool last) {
  if (!trace_.On()) return;
  const MutexLock lock(mutex_);
  for (Participant* member : membership_->members()) {
    if (last) {
      trace_.Finish(member->trace, *member->pages);
    } else {
      trace_.LookAt(member->trace, *member->pages);
    }
  }
  for (uint32_t slot = 0; slot < slots_.count(); ++slot) {
    if (slots_.state(slot) == SlotState::kLent && membership_->IsReleased(slot)) trace_.SlotReleased(slot);
  }
  if (last) trace_.FinishSlots();
}

FeedSnapshot Feed::Snapshot() {
  MutexLock lock(mutex_);
  AccountLocked();
  static constexpr std::array<const char*, 5> kPhases = {"waiting", "running", "draining", "ended", "failed"};
  FeedSnapshot snapshot = counters_;
  snapshot.id = parts_.id;
  snapshot.dataset = dataset().path;
  snapshot.name = NameOf(parts_.spec.dataset);
  snapshot.dataset_samples = dataset().samples;
  snapshot.batch_size = parts_.spec.batch_size;
  snapshot.shuffled = parts_.spec.order == Order::kShuffle;
  snapshot.sharing = parts_.spec.sharing;
  snapshot.on_device = parts_.arena->backend() != Backend::kHost;
  snapshot.state = kPhases[static_cast<size_t>(phase_)];
  snapshot.error = error_;
  snapshot.slots_free = slots_.CountIn(SlotState::kFree);
  snapshot.slots_filling = slots_.CountIn(SlotState::kFilling);
  snapshot.slots_ready = slots_.CountIn(SlotState::kReady) + membership_->waiting();
  snapshot.slots_lent = slots_.CountIn(SlotState::kLent) - membership_->waiting();
  snapshot.ignored_releases = membership_->ignored_releases();
  for (uint32_t slot = 0; slot < slots_.count(); ++slot) snapshot.slot_states += SlotLetterLocked(slot);
  snapshot.stall_ns = stalls_.sums();
  if (recent_.known()) snapshot.recent = recent_.shares();
  snapshot.arena_bytes = parts_.arena->bytes();
  const ProducerTimes times = parts_.producer->times();
  snapshot.read_ns = times.read_ns;
  snapshot.decode_ns = times.decode_ns;
  const double running = static_cast<double>(std::max<uint64_t>(1, snapshot.running_ns));
  if (snapshot.full_ns >= snapshot.starved_ns) {
    snapshot.bound_on = "consumer";
    snapshot.bound_share = static_cast<double>(snapshot.full_ns) / running;
  } else {
    const StallTimes& stall = snapshot.stall_ns;
    const auto most =
        std::max_element(stall.begin(), stall.begin() + static_cast<size_t>(StallCause::kConsumer));
    const StallCause workers =
        snapshot.read_ns > snapshot.decode_ns ? StallCause::kRead : StallCause::kDecode;
    const auto cause = *most > 0 ? static_cast<size_t>(most - stall.begin()) : static_cast<size_t>(workers);
    snapshot.bound_on = kStallCauseNames[cause];
    snapshot.bound_share = static_cast<double>(snapshot.starved_ns) / running;
  }
  return snapshot;
}

ParticipantSnapshot Feed::SnapshotOf(const Participant& participant) const {
  const MutexLock lock(mutex_);
  return membership_->Snapshot(participant, Clock::now());
}

}  // namespace pinfeed
