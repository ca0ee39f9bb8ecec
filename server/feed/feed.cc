// SPDX-License-Identifier: Apache-2.0
#include "server/feed/feed.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/log_pace.h"
#include "common/base/quote.h"

namespace pinfeed {
namespace {

constexpr uint32_t kMaxFailuresLoggedPerSecond = 20;

}  // namespace

Feed::Feed(Parts parts)
    : share_(std::make_shared<FeedShare>(parts.owner, parts.id)),
      parts_(std::move(parts)),
      filling_{*parts_.arena, parts_.sampler, parts_.spec.on_bad_sample,
               FeedRecorder(parts_.tracer, parts_.owner, parts_.id), share_.share()},
      bad_sample_log_(parts_.id),
      trace_(filling_.recorder),
      bad_samples_(parts_.spec.on_bad_sample, parts_.sampler.batches_per_epoch()),
      slots_(parts_.arena->slot_count()),
      membership_(Membership::Create(parts_.spec.sharing, slots_.count(), trace_)),
      planner_(parts_.sampler, parts_.spec.epochs),
      stalls_(slots_.count()) {}

Feed::~Feed() {
  MutexLock lock(mutex_);
  PF_CHECK(membership_->members().empty() && membership_->holders().empty() &&
               slots_.CountIn(SlotState::kFilling) == 0,
           "a feed is stopped before it is destroyed");
}

Sampler::Start Feed::Upcoming() const {
  const MutexLock lock(mutex_);
  return UpcomingLocked();
}

bool Feed::HasBegun() const {
  const MutexLock lock(mutex_);
  return phase_ != Phase::kWaiting;
}

bool Feed::Serves() const {
  const MutexLock lock(mutex_);
  return phase_ != Phase::kDraining && phase_ != Phase::kFailed;
}

Status Feed::Attach(Participant& participant) {
  const std::optional<Sampler::Start> start = participant.start;
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    if (phase_ == Phase::kFailed) return error_;
    AccountLocked();  // earlier time does not belong to the new member
    const std::string what = "attach to feed " + std::to_string(parts_.id);
    if (phase_ == Phase::kEnded && membership_->waiting() == 0)
      return FailedPrecondition(what + ": its last epoch has ended");
    // The next daemon takes them.
    if (phase_ == Phase::kDraining || stopping_) return Unavailable(what + ": it is draining");
    if (phase_ == Phase::kEnded) EnterLocked(Phase::kRunning);  // for the batches that wait
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
    membership_->Add(participant);
    if (phase_ == Phase::kWaiting && membership_->members().size() >= std::max(1U, parts_.spec.group_size)) {
      planner_.Begin(membership_->EarliestStart(Sampler::Start{}));
      EnterLocked(Phase::kRunning);
    }
    after = AdvanceLocked();
  }
  Do(std::move(after));
  return OkStatus();
}

size_t Feed::Depart(Participant& participant, const Departure& departure) {
  AfterUnlock after;
  size_t kept = 0;
  {
    MutexLock lock(mutex_);
    if (participant.role == Participant::Role::kNone) return 0;
    if (departure.keeps_taken && participant.role == Participant::Role::kHolder) return 0;
    AccountLocked();
    CollectReleasesLocked();
    kept = membership_->Depart(participant, departure);
    after = AdvanceLocked();
  }
  Do(std::move(after));
  return kept;
}

void Feed::ReadReleases() {
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    after = AdvanceLocked();
  }
  Do(std::move(after));
}

void Feed::Drain() {
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    after = AdvanceLocked();  // plans nothing more; enters kDraining once all planned batches are published
  }
  Do(std::move(after));
}

void Feed::Stop(std::function<void()> at_rest) {
  filling_.stopped.store(true, std::memory_order_relaxed);
  parts_.producer->Cancel();
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    at_rest_ = std::move(at_rest);
    after = AdvanceLocked();
  }
  Do(std::move(after));
}

Feed::AfterUnlock Feed::AdvanceLocked() {
  AccountLocked();
  AfterUnlock after;
  const bool had_failed = phase_ == Phase::kFailed;
  CollectReleasesLocked();
  LendWaitingLocked();
  PublishReadyLocked();
  PlanLocked();
  RequestPiecesLocked(after);
  if (batches_.empty()) {
    // After Stop, the last batches may have been discarded, so the epoch has not ended.
    const bool abandoned = filling_.stopped.load(std::memory_order_relaxed);
    if (phase_ == Phase::kRunning && planner_.Done() && !abandoned) {
      SetStarvedLocked(membership_->MayLendAgain());
      CollectReleasesLocked();  // releases from before the client could see that
      if (!membership_->MayLendAgain()) {
        EnterLocked(Phase::kEnded);
      } else if (stopping_) {
        EnterLocked(Phase::kDraining);  // the next daemon publishes what comes back
      }
    } else if (stopping_ && (phase_ == Phase::kRunning || phase_ == Phase::kWaiting)) {
      EnterLocked(Phase::kDraining);
    }
  }
  share_->ready.store(slots_.CountIn(SlotState::kReady) + slots_.CountIn(SlotState::kLent),
                      std::memory_order_relaxed);
  if (counters_.batches > 0) {
    for (FeedShare::PoolShare* share : {&share_->workers, &share_->readers})
      share->batch_ns.store(share->worked_ns.load(std::memory_order_relaxed) / counters_.batches,
                            std::memory_order_relaxed);
  }
  if (phase_ == Phase::kFailed && !had_failed) after.failure = error_;
  if (slots_.CountIn(SlotState::kFilling) == 0) after.at_rest = std::exchange(at_rest_, {});
  return after;
}

void Feed::CollectReleasesLocked() {
  for (uint32_t slot = 0; slot < slots_.count(); ++slot) {
    if (slots_.state(slot) != SlotState::kLent) continue;
    const auto lent = membership_->TakeBack(slot, stalls_.time());
    if (!lent) continue;
    counters_.lent.Add(Nanoseconds(*lent));
    slots_.MarkFree(slot);
  }
}

void Feed::PublishReadyLocked() {
  while (!batches_.empty() && slots_.state(batches_.front()) == SlotState::kReady) {
    const uint32_t slot = batches_.front();
    BatchQueue::Batch& batch = batches_[slot];
    if (phase_ != Phase::kRunning || filling_.stopped.load(std::memory_order_relaxed)) {
      slots_.Abandon(slot);
      batches_.Pop();
      continue;
    }
    if (batch.undelivered) {
      // The daemon is about to exit; clients get these batches from the next daemon.
      filling_.stopped.store(true, std::memory_order_relaxed);
      stopping_ = true;
      continue;
    }
    if (batch.result.status.ok()) batch.result.status = bad_samples_.CheckBatch(batch.result);
    if (!batch.result.status.ok()) {
      error_ = batch.result.status;
      EnterLocked(Phase::kFailed);
      continue;
    }
    batches_.Pop();
    ++counters_.batches;
    counters_.samples += batch.result.samples;
    for (const TensorPlace& tensor : parts_.layout.tensors)
      counters_.bytes += batch.result.samples * tensor.sample_bytes;
    counters_.epoch = batch.plan.epoch;
    counters_.batch_index = batch.plan.batch_index;
    slots_.MarkLent(slot);
    if (!membership_->Lend(DescriptorOfLocked(slot), stalls_.time())) slots_.MarkFree(slot);
    LendWaitingLocked();
  }
}

void Feed::LendWaitingLocked() {
  membership_->LendWaiting(stalls_.time(), phase_ == Phase::kRunning && !stopping_);
}

BatchDescriptor Feed::DescriptorOfLocked(uint32_t slot) const {
  const BatchQueue::Batch& batch = batches_[slot];
  BatchDescriptor descriptor{};
  descriptor.generation = slots_.generation(slot);
  descriptor.epoch = batch.plan.epoch;
  descriptor.batch_index = batch.plan.batch_index;
  descriptor.position = batch.plan.next_position;
  descriptor.slot = slot;
  descriptor.samples = batch.result.samples;
  descriptor.skipped = batch.result.skipped;
  descriptor.flags = batch.plan.last_of_epoch ? kFlagLastOfEpoch : 0;
  return descriptor;
}

void Feed::PlanLocked() {
  if (phase_ != Phase::kRunning) return;
  if (membership_->waiting() > 0) {
    // Request doorbells, then read once more: see below.
    SetStarvedLocked(true);
    CollectReleasesLocked();
    LendWaitingLocked();
  }
  while (!stopping_ && !membership_->members().empty() && !planner_.Done() && SkipUnwantedLocked()) {
    std::optional<uint32_t> slot = slots_.TakeFree();
    if (!slot) {
      // Request doorbells, then read once more. That finds a release that was stored before the client could
      // see the request.
      SetStarvedLocked(true);
      CollectReleasesLocked();
      slot = slots_.TakeFree();
      if (!slot) return;
    }
    const BatchPlan plan = planner_.Plan();
    batches_.Push(*slot, plan, stalls_.time(), std::make_shared<BatchFill>(filling_, *this, *slot, plan));
  }
  if (membership_->waiting() == 0 && (!batches_.empty() || !planner_.Done()))
    SetStarvedLocked(false);  // otherwise AdvanceLocked decides
}

bool Feed::SkipUnwantedLocked() {
  if (parts_.spec.sharing == Sharing::kQueue) return true;
  const Sampler::Start next = planner_.next();
  const Sampler::Start first = membership_->EarliestStart(next);
  // While older batches are being published, a member may attach that wants the batches in between.
  if (first > next && !batches_.empty()) return false;
  planner_.SkipTo(first);
  return !planner_.Done();
}

Sampler::Start Feed::UpcomingLocked() const {
  if (batches_.empty()) return planner_.next();
  const BatchPlan& plan = batches_[batches_.front()].plan;
  return {plan.epoch, plan.batch_index};
}

void Feed::RequestPiecesLocked(AfterUnlock& after) {
  // Null while pieces remain: the next completed delivery frees memory for one.
  while (std::shared_ptr<PieceRequest> request = batches_.NextRequest())
    after.requests.push_back(std::move(request));
}

void Feed::SetStarvedLocked(bool starved) {
  if (membership_->SetStarved(starved))
    parts_.arena->SetWaiting({BatchFill::Owner::shared_from_this(), this}, starved);
}

void Feed::EnterLocked(Phase phase) {
  phase_ = phase;
  LendWaitingLocked();                                    // before a phase in which nothing is published
  if (phase != Phase::kRunning) SetStarvedLocked(false);  // no more slots are filled
  for (const Participant* member : membership_->members()) {
    if (phase == Phase::kDraining) member->pages->SetState(FeedState::kDraining);
    if (phase == Phase::kEnded) member->pages->SetState(FeedState::kEnded);
    if (phase == Phase::kFailed) member->pages->Fail(error_);
  }
}

void Feed::Do(AfterUnlock after) {
  for (std::shared_ptr<PieceRequest>& request : after.requests) parts_.producer->Produce(std::move(request));
  if (!after.failure.ok()) {
    static LogPace pace(kMaxFailuresLoggedPerSecond);
    if (const auto more = pace.Admit())
      spdlog::error("feed {}: failed: {}{}", parts_.id, after.failure.ToString(), *more);
  }
  if (after.at_rest) after.at_rest();
}

void Feed::OnPieceMemory() {
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    if (batches_.has_unrequested()) AccountLocked();  // copies may have been the cause of waiting until now
    RequestPiecesLocked(after);
  }
  Do(std::move(after));
}

void Feed::OnFilled(uint32_t slot, FillResult result) {
  if (result.status.ok()) bad_sample_log_.Log(result.bad);
  MutexLock lock(mutex_);
  AccountLocked();
  bad_samples_.Add(result.bad);
  BatchQueue::Batch& batch = batches_[slot];
  counters_.filling.Add(Nanoseconds(stalls_.time() - batch.planned));
  batch.delivering = true;
  batch.result = std::move(result);
}

void Feed::OnDelivered(uint32_t slot, const Status& status) {
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    if (!status.ok()) batches_[slot].undelivered = true;
    slots_.MarkReady(slot);
    after = AdvanceLocked();
  }
  Do(std::move(after));
}

}  // namespace pinfeed
