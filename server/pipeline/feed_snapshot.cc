// SPDX-License-Identifier: Apache-2.0
// What status, metrics and traces show of a feed: where its time went, and what its slots are in.
#include <algorithm>
#include <array>

#include "server/pipeline/feed.h"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t Nanoseconds(Clock::duration duration) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count()));
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
  for (Consumer& consumer : consumers_) {
    const uint64_t total = WaitedNs(consumer.pages->Stats(), Nanoseconds(now.time_since_epoch()));
    if (total > consumer.waited_ns) waited += std::min(total - consumer.waited_ns, elapsed);
    consumer.waited_ns = total;
  }
  if (phase_ != Phase::kRunning) return;
  counters_.running_ns += elapsed;
  counters_.starved_ns += waited / std::max<size_t>(1, consumers_.size());
  if (slots_.CountIn(SlotState::kFree) == 0 && slots_.CountIn(SlotState::kFilling) == 0)
    counters_.full_ns += elapsed;
}

bool Feed::IsReleasedLocked(uint32_t slot) const {
  return std::all_of(consumers_.begin(), consumers_.end(), [&](const Consumer& consumer) {
    return consumer.owed[slot] == 0 || consumer.pages->Released(slot) == consumer.owed[slot];
  });
}

void Feed::LookForTrace(bool last) {
  if (!trace_.On()) return;
  const MutexLock lock(mutex_);
  for (Consumer& consumer : consumers_) {
    if (last) {
      trace_.Finish(consumer.trace, *consumer.pages);
    } else {
      trace_.LookAt(consumer.trace, *consumer.pages);
    }
  }
  for (uint32_t slot = 0; slot < slots_.count(); ++slot) {
    if (slots_.state(slot) == SlotState::kLent && IsReleasedLocked(slot)) trace_.SlotReleased(slot);
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
  snapshot.sharing = parts_.spec.sharing;
  snapshot.state = kPhases[static_cast<size_t>(phase_)];
  snapshot.error = error_;
  snapshot.slots_free = slots_.CountIn(SlotState::kFree);
  snapshot.slots_filling = slots_.CountIn(SlotState::kFilling);
  snapshot.slots_ready = slots_.CountIn(SlotState::kReady);
  snapshot.slots_lent = slots_.CountIn(SlotState::kLent);
  snapshot.arena_bytes = parts_.arena->bytes();
  snapshot.read_ns = read_ns_.load(std::memory_order_relaxed);
  snapshot.decode_ns = decode_ns_.load(std::memory_order_relaxed);
  const double running = static_cast<double>(std::max<uint64_t>(1, snapshot.running_ns));
  if (snapshot.full_ns >= snapshot.starved_ns) {
    snapshot.bound_on = "consumer";
    snapshot.bound_share = static_cast<double>(snapshot.full_ns) / running;
  } else {
    snapshot.bound_on = snapshot.read_ns > snapshot.decode_ns ? "read" : "decode";
    snapshot.bound_share = static_cast<double>(snapshot.starved_ns) / running;
  }
  return snapshot;
}

ConsumerSnapshot Feed::SnapshotOf(const ControlPages* session) const {
  const MutexLock lock(mutex_);
  ConsumerSnapshot snapshot;
  for (const Consumer& consumer : consumers_) {
    if (consumer.pages != session) continue;
    snapshot.slots_lent = static_cast<uint32_t>(
        std::count_if(consumer.owed.begin(), consumer.owed.end(), [](uint64_t g) { return g != 0; }));
    snapshot.ignored_releases = consumer.ignored_releases;
  }
  return snapshot;
}

}  // namespace pinfeed
