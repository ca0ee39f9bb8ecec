// SPDX-License-Identifier: Apache-2.0
// The sessions of a feed: they come, leave, or are evicted.
#include <algorithm>
#include <utility>

#include "common/base/quote.h"
#include "server/feed/feed.h"

namespace pinfeed {
namespace {

// Queue groups: one slot in so many, and at least one, is lent only to members that have taken all that they
// were lent. So one that is stopped leaves some to the others, and to those that come later.
constexpr uint32_t kSharesOfAQueue = 4;

}  // namespace

Status Feed::Attach(ControlPages* session, std::optional<Sampler::Start> start) {
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    if (phase_ == Phase::kFailed) return error_;
    AccountLocked();  // what was before is not the newcomer's
    const std::string what = "attach to feed " + std::to_string(parts_.id);
    if (phase_ == Phase::kEnded && unclaimed_.empty())
      return FailedPrecondition(what + ": its last epoch is over");
    // The next daemon takes them.
    if (phase_ == Phase::kDraining || stopping_) return Unavailable(what + ": it is draining");
    if (phase_ == Phase::kEnded) EnterLocked(Phase::kRunning);  // for what is unclaimed
    const bool queue = parts_.spec.sharing == Sharing::kQueue;
    if (phase_ == Phase::kRunning && start && queue) planner_.GoBackTo(*start);
    if (phase_ == Phase::kRunning && start && !queue) {
      const Sampler::Start upcoming = UpcomingLocked();
      if (*start < upcoming) {
        return FailedPrecondition("cursor: group " + QuotePath(parts_.spec.group) + " is already at batch " +
                                  std::to_string(upcoming.batch_index) + " of epoch " +
                                  std::to_string(upcoming.epoch) +
                                  "; join without a cursor, or open another group");
      }
    }
    consumers_.push_back({session, start});
    session->SetStarved(starved_);
    if (phase_ == Phase::kWaiting && consumers_.size() >= std::max(1U, parts_.spec.group_size)) {
      Sampler::Start first = consumers_.front().start.value_or(Sampler::Start{});
      for (const Consumer& consumer : consumers_)
        first = std::min(first, consumer.start.value_or(Sampler::Start{}));
      planner_.Begin(first);
      EnterLocked(Phase::kRunning);
    }
    after = AdvanceLocked();
  }
  Do(std::move(after));
  return OkStatus();
}

size_t Feed::Detach(ControlPages* session) {
  AfterUnlock after;
  size_t left = 0;
  {
    MutexLock lock(mutex_);
    const auto is_it = [&](const Consumer& consumer) { return consumer.pages == session; };
    std::vector<Consumer>& those =
        std::any_of(evicted_.begin(), evicted_.end(), is_it) ? evicted_ : consumers_;
    const auto found = std::find_if(those.begin(), those.end(), is_it);
    if (found == those.end()) return consumers_.size();
    AccountLocked();
    CollectReleasesLocked();
    trace_.Finish(found->trace, *session);
    const Consumer gone = *found;
    those.erase(found);
    // What nobody holds any more is taken back below.
    for (uint32_t slot = 0; slot < slots_.count(); ++slot)
      if (gone.owed[slot] != 0) PassOnLocked(slot);
    left = consumers_.size();
    after = AdvanceLocked();
  }
  Do(std::move(after));
  return left;
}

size_t Feed::Evict(ControlPages* session, const Status& error) {
  AfterUnlock after;
  size_t held = 0;
  {
    MutexLock lock(mutex_);
    const auto found = std::find_if(consumers_.begin(), consumers_.end(),
                                    [&](const Consumer& consumer) { return consumer.pages == session; });
    if (found == consumers_.end()) return 0;
    AccountLocked();
    const uint64_t taken = session->Evict(error);
    session->SetStarved(true);  // it rings for each batch that it still has: the others may wait for that one
    CollectReleasesLocked();
    trace_.Finish(found->trace, *session);
    Consumer gone = *found;
    consumers_.erase(found);
    for (uint32_t slot = 0; slot < slots_.count(); ++slot) {
      if (gone.owed[slot] == 0) continue;
      if (gone.sequence[slot] < taken) {
        ++held;
      } else {
        gone.owed[slot] = 0;
        PassOnLocked(slot);
      }
    }
    if (held > 0) evicted_.push_back(gone);
    after = AdvanceLocked();
  }
  Do(std::move(after));
  return held;
}

void Feed::PassOnLocked(uint32_t slot) {
  if (parts_.spec.sharing == Sharing::kQueue) LendLocked(slot);
}

bool Feed::MayComeBackLocked() const {
  if (parts_.spec.sharing != Sharing::kQueue) return false;
  if (!unclaimed_.empty()) return true;
  if (consumers_.size() < 2) return false;
  return std::any_of(consumers_.begin(), consumers_.end(), [](const Consumer& consumer) {
    return consumer.Owes() > 0 && consumer.pages->Stats().taken < consumer.pages->published();
  });
}

bool Feed::IsUnclaimedLocked(uint32_t slot) const {
  return std::find(unclaimed_.begin(), unclaimed_.end(), slot) != unclaimed_.end();
}

void Feed::LendUnclaimedLocked() {
  while (!unclaimed_.empty()) {
    Consumer* const taker = NextTakerLocked();
    if (taker == nullptr) return;
    const uint32_t slot = unclaimed_.front();
    unclaimed_.pop_front();
    since_[slot] = accounted_;
    const BatchDescriptor batch = DescriptorOfLocked(slot);
    const uint64_t now_ns = trace_.On() ? TraceClockNs() : 0;
    PublishToLocked(*taker, batch, now_ns);
    trace_.SlotLent(slot, batch, now_ns);
  }
}

Feed::Consumer* Feed::NextTakerLocked() {
  const size_t left = slots_.count() - slots_.CountIn(SlotState::kLent) + unclaimed_.size();
  const size_t kept = std::max(1U, slots_.count() / kSharesOfAQueue);
  const bool keeps = phase_ == Phase::kRunning && !stopping_ && left <= kept;
  Consumer* taker = nullptr;
  std::pair<int64_t, int64_t> least;
  for (Consumer& consumer : consumers_) {
    // Read once: the client may change it at any time.
    const std::pair load(consumer.Untaken(), consumer.Owes());
    if (keeps && load.first > 0) continue;
    if (taker != nullptr && load >= least) continue;
    taker = &consumer;
    least = load;
  }
  return taker;
}

}  // namespace pinfeed
