// SPDX-License-Identifier: Apache-2.0
#include "server/feed/batch_cycle.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/base/histogram.h"
#include "common/base/quote.h"

namespace pinfeed {
namespace {

// A batch that takes so many producers long is merely slow.
constexpr uint32_t kMaxReplacements = 2;
// What a trainer that waits for a batch may hold: the one in use, and the one before.
constexpr uint32_t kHeld = 2;

BatchDescriptor DescriptorOf(uint32_t slot, uint64_t generation, const BatchQueue::Batch& batch) {
  BatchDescriptor descriptor{};
  descriptor.generation = generation;
  descriptor.epoch = batch.plan.epoch;
  descriptor.batch_index = batch.plan.batch_index;
  descriptor.position = batch.plan.next_position;
  descriptor.slot = slot;
  descriptor.samples = batch.result.samples;
  descriptor.skipped = batch.result.skipped;
  descriptor.zeroed = batch.result.zeroed;
  descriptor.flags = batch.plan.last_of_epoch ? kFlagLastOfEpoch : 0;
  return descriptor;
}

}  // namespace

BatchCycle::BatchCycle(const FeedParts& parts, FillContext& filling, BatchFill::Owner& owner,
                       ReleaseReader& reader)
    : parts_(parts),
      filling_(filling),
      owner_(owner),
      reader_(reader),
      trace_(filling.recorder),
      slots_(parts.arena->slot_count()),
      membership_(Membership::Create(parts.spec, slots_.count(), trace_)),
      planner_(parts.sampler, parts.spec.epochs),
      bad_samples_(parts.spec.on_bad_sample, parts.sampler.batches_per_epoch(), parts.spec.world_size),
      stalls_(slots_.count()) {}

BatchCycle::~BatchCycle() {
  PF_CHECK(membership_->members().empty() && membership_->holders().empty() && AtRest(),
           "a feed is stopped before it is destroyed");
}

Sampler::Start BatchCycle::Upcoming() const {
  if (batches_.empty()) return planner_.next();
  const BatchPlan& plan = batches_[batches_.front()].plan;
  return {plan.epoch, plan.batch_index};
}

Status BatchCycle::Attach(Participant& participant) {
  const std::optional<Sampler::Start> start = participant.start;
  if (phase_ == Phase::kFailed) return error_;
  Account();  // earlier time does not belong to the new member
  const std::string what = "attach to feed " + std::to_string(parts_.id);
  if (phase_ == Phase::kEnded && membership_->waiting() == 0)
    return FailedPrecondition(what +
                              ": its last epoch has ended; a group that has ended takes no new member, so "
                              "open one with another name");
  // The next daemon takes them.
  if (phase_ == Phase::kDraining || stopping_) return Unavailable(what + ": it is draining");
  if (phase_ == Phase::kEnded) Enter(Phase::kRunning);  // for the batches that wait
  const bool queue = parts_.spec.sharing == Sharing::kQueue;
  if (phase_ == Phase::kRunning && start && queue) planner_.GoBackTo(*start);
  if (phase_ == Phase::kRunning && start && !queue) {
    const Sampler::Start upcoming = Upcoming();
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
    Enter(Phase::kRunning);
  }
  participant.first = start.value_or(Sampler::Start{});
  if (phase_ != Phase::kWaiting) participant.first = std::max(participant.first, Upcoming());
  return OkStatus();
}

size_t BatchCycle::Depart(Participant& participant, const Departure& departure) {
  Account();
  CollectReleases();
  return membership_->Depart(participant, departure);
}

BatchCycle::Work BatchCycle::Advance() {
  Account();
  Work work;
  const bool had_failed = phase_ == Phase::kFailed;
  if (!Busy()) CollectReleases();
  LendWaiting();
  PublishReady();
  Plan();
  work.requests = batches_.TakeRequests();
  if (batches_.empty()) {
    // After Stop, the last batches may have been discarded, so the epoch has not ended.
    const bool abandoned = filling_.stopped.load(std::memory_order_relaxed);
    if (phase_ == Phase::kRunning && planner_.Done() && !abandoned) {
      SetStarved(membership_->MayLendAgain());
      CollectReleases();  // releases from before the client could see that
      if (!membership_->MayLendAgain()) {
        Enter(Phase::kEnded);
      } else if (stopping_) {
        Enter(Phase::kDraining);  // the next daemon publishes what comes back
      }
    } else if (stopping_ && (phase_ == Phase::kRunning || phase_ == Phase::kWaiting)) {
      Enter(Phase::kDraining);
    }
  }
  filling_.share->ready.store(slots_.CountIn(SlotState::kReady) + slots_.CountIn(SlotState::kLent),
                              std::memory_order_relaxed);
  if (counters_.batches > 0) {
    for (FeedShare::PoolShare* share : {&filling_.share->workers, &filling_.share->readers})
      share->CountBatches(counters_.batches);
  }
  if (phase_ == Phase::kFailed && !had_failed) work.failure = error_;
  work.published = membership_->TakePublished();
  return work;
}

void BatchCycle::CollectReleases() {
  for (uint32_t slot = 0; slot < slots_.count(); ++slot) {
    if (slots_.state(slot) != SlotState::kLent) continue;
    const auto lent = membership_->TakeBack(slot, stalls_.time());
    if (!lent) continue;
    counters_.lent.Add(Nanoseconds(*lent));
    slots_.MarkFree(slot);
  }
}

void BatchCycle::PublishReady() {
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
    if (batch.result.status.ok()) batch.result.status = bad_samples_.CheckBatch(batch.plan, batch.result);
    if (!batch.result.status.ok()) {
      error_ = batch.result.status;
      Enter(Phase::kFailed);
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
    if (!membership_->Lend(DescriptorOf(slot, slots_.generation(slot), batch), stalls_.time()))
      slots_.MarkFree(slot);
    LendWaiting();
  }
}

void BatchCycle::LendWaiting() {
  membership_->LendWaiting(
      stalls_.time(), phase_ == Phase::kRunning && !stopping_,
      [this](const BatchDescriptor& batch) { parts_.producer->OnLent(batch.epoch, batch.batch_index); });
}

void BatchCycle::Plan() {
  if (phase_ != Phase::kRunning) return;
  if (membership_->waiting() > 0) {
    // Request doorbells, then read once more: see below.
    SetStarved(true);
    CollectReleases();
    LendWaiting();
  }
  while (!stopping_ && !membership_->members().empty() && !planner_.Done() && SkipUnwanted()) {
    std::optional<uint32_t> slot = TakeSlot();
    if (!slot) {
      if (Busy()) return SetStarved(false);
      // Request doorbells, then read once more. That finds a release that was stored before the client could
      // see the request.
      SetStarved(true);
      CollectReleases();
      slot = TakeSlot();
      if (!slot) return;
    }
    const BatchPlan plan = planner_.Plan();
    batches_.Push(*slot, plan, stalls_.time(), std::make_shared<BatchFill>(filling_, owner_, *slot, plan));
  }
  if (membership_->waiting() == 0 && (!batches_.empty() || !planner_.Done()))
    SetStarved(false);  // otherwise Advance decides
}

bool BatchCycle::Busy() const {
  return membership_->waiting() == 0 && parts_.producer->Busy(*filling_.share, batches_.filling());
}

std::optional<uint32_t> BatchCycle::TakeSlot() {
  if (!batches_.empty() && slots_.CountIn(SlotState::kFree) <= KeptSlots()) return std::nullopt;
  return slots_.TakeFree();
}

uint32_t BatchCycle::KeptSlots() const {
  const std::optional<ProducedDataset>& produced = parts_.spec.dataset.produced;
  if (!produced || produced->task_timeout_ms == 0) return 0;
  // While the trainer holds fewer, the slot of a moved batch does not come back when the next one is taken.
  const uint32_t not_held = kHeld - std::min(kHeld, slots_.CountIn(SlotState::kLent));
  const uint32_t most = std::max(slots_.count(), 3U) - 2;  // a feed of few slots still fills two
  return std::min(kMaxReplacements + not_held, most);
}

bool BatchCycle::SkipUnwanted() {
  if (parts_.spec.sharing == Sharing::kQueue) return true;
  const Sampler::Start next = planner_.next();
  const Sampler::Start first = membership_->EarliestStart(next);
  // While older batches are being published, a member may attach that wants the batches in between.
  if (first > next && !batches_.empty()) return false;
  planner_.SkipTo(first);
  return !planner_.Done();
}

BatchCycle::Requests BatchCycle::RequestMore() {
  if (batches_.has_unrequested()) Account();  // copies may have been the cause of waiting until now
  return batches_.TakeRequests();
}

void BatchCycle::SetStarved(bool starved) {
  if (membership_->SetStarved(starved))
    parts_.arena->SetWaiting({owner_.shared_from_this(), &reader_}, starved);
}

void BatchCycle::Enter(Phase phase) {
  phase_ = phase;
  LendWaiting();                                    // before a phase in which nothing is published
  if (phase != Phase::kRunning) SetStarved(false);  // no more slots are filled
  for (const Participant* member : membership_->members()) {
    if (phase == Phase::kDraining) member->pages->SetState(FeedState::kDraining);
    if (phase == Phase::kEnded) member->pages->SetState(FeedState::kEnded);
    if (phase == Phase::kFailed) member->pages->Fail(error_);
  }
}

void BatchCycle::OnFilled(uint32_t slot, FillResult result) {
  if (filling_.replaced[slot] && !(result.status.ok() && MoveBack(slot))) return;
  Account();
  bad_samples_.Add(result);
  counters_.filling.Add(Nanoseconds(stalls_.time() - batches_[slot].planned));
  batches_.MarkFilled(slot, std::move(result));
}

bool BatchCycle::Replace(uint32_t slot) {
  BatchQueue::Batch& batch = batches_[slot];
  const bool filling =
      slots_.state(slot) == SlotState::kFilling && !filling_.replaced[slot] && !batch.delivering;
  const bool wanted = phase_ == Phase::kRunning && !filling_.stopped.load(std::memory_order_relaxed);
  if (!filling || !wanted || batch.replacements == kMaxReplacements) return false;
  if (slot != batches_.front() && slots_.CountIn(SlotState::kFree) <= KeptSlots()) return false;
  const std::optional<uint32_t> to = slots_.TakeFree();
  if (!to) return false;
  Account();
  filling_.replaced[slot] = true;
  batches_.Move(slot, *to, std::make_shared<BatchFill>(filling_, owner_, *to, batch.plan));
  return true;
}

bool BatchCycle::MoveBack(uint32_t slot) {
  const std::optional<uint32_t> current = batches_.Current(slot);
  if (!current || slots_.state(*current) != SlotState::kFilling || batches_[*current].delivering)
    return false;
  batches_.MoveBack(*current, slot);
  filling_.replaced[*current] = true;
  filling_.replaced[slot] = false;
  return true;
}

void BatchCycle::OnDelivered(uint32_t slot, const Status& status) {
  if (filling_.replaced[slot].exchange(false)) return slots_.Abandon(slot);
  if (!status.ok()) batches_[slot].undelivered = true;
  slots_.MarkReady(slot);
}

}  // namespace pinfeed
