// SPDX-License-Identifier: Apache-2.0
#include "server/pipeline/feed.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "server/pipeline/fill.h"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBadSamplesKept = 16;
// A chunk of small samples should cost a worker about as much as a few trips through the pool's lock: tens of
// microseconds.
constexpr uint64_t kChunkBytes = 512 * 1024;

uint64_t Nanoseconds(Clock::duration duration) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count()));
}

bool Before(const Sampler::Start& a, const Sampler::Start& b) {
  return std::tie(a.epoch, a.batch_index) < std::tie(b.epoch, b.batch_index);
}

}  // namespace

Feed::Feed(Parts parts, WorkerPool& workers)
    : share_(std::make_shared<FeedShare>()),
      parts_(std::move(parts)),
      workers_(workers),
      trace_(parts_.tracer, parts_.owner, parts_.id),
      slots_(parts_.arena->slot_count()),
      accounted_(Clock::now()) {
  for (const TensorPlace& tensor : parts_.layout.tensors) bytes_per_sample_ += tensor.sample_bytes;
  const auto& fields = parts_.loader->dataset().info().fields;
  const bool decodes = std::any_of(fields.begin(), fields.end(),
                                   [](const Field& f) { return f.kind == FieldKind::kEncodedImage; });
  if (!decodes)
    grain_ =
        static_cast<uint32_t>(std::max<uint64_t>(1, kChunkBytes / std::max<uint64_t>(1, bytes_per_sample_)));
}

Feed::~Feed() {
  MutexLock lock(mutex_);
  PF_CHECK(consumers_.empty() && slots_.CountIn(SlotState::kFilling) == 0,
           "a feed is stopped before it is destroyed");
}

Status Feed::Attach(ControlPages* session, std::optional<Sampler::Start> start) {
  Tasks tasks;
  {
    MutexLock lock(mutex_);
    if (phase_ == Phase::kFailed) return error_;
    const std::string what = "attach to feed " + std::to_string(parts_.id);
    if (phase_ == Phase::kEnded) return FailedPrecondition(what + ": its last epoch is over");
    // The next daemon takes them.
    if (phase_ == Phase::kDraining || stopping_) return Unavailable(what + ": it is draining");
    const bool queue = parts_.spec.sharing == Sharing::kQueue;
    if (phase_ == Phase::kRunning && start && queue && Before(*start, first_)) {
      detours_.push_back({first_, next_});
      first_ = next_ = *start;
    }
    if (phase_ == Phase::kRunning && start && !queue) {
      const Sampler::Start upcoming = in_flight_.empty()
                                          ? next_
                                          : Sampler::Start{batches_[in_flight_.front()].plan.epoch,
                                                           batches_[in_flight_.front()].plan.batch_index};
      if (Before(*start, upcoming)) {
        return FailedPrecondition("cursor: group '" + parts_.spec.group + "' is already at batch " +
                                  std::to_string(upcoming.batch_index) + " of epoch " +
                                  std::to_string(upcoming.epoch) +
                                  "; join without a cursor, or open another group");
      }
    }
    consumers_.push_back({session, start, {}, {}, 0, 0, 0, {}, {}});
    session->SetStarved(starved_);
    if (phase_ == Phase::kWaiting && consumers_.size() >= std::max(1U, parts_.spec.group_size)) {
      next_ = consumers_.front().start.value_or(Sampler::Start{});
      for (const Consumer& consumer : consumers_)
        next_ = std::min(next_, consumer.start.value_or(Sampler::Start{}), Before);
      first_ = next_;
      EnterLocked(Phase::kRunning);
    }
    tasks = AdvanceLocked();
  }
  Submit(std::move(tasks));
  return OkStatus();
}

size_t Feed::Detach(ControlPages* session, const Status& error) {
  Tasks tasks;
  size_t left = 0;
  {
    MutexLock lock(mutex_);
    const auto found = std::find_if(consumers_.begin(), consumers_.end(),
                                    [&](const Consumer& c) { return c.pages == session; });
    if (found == consumers_.end()) return consumers_.size();
    AccountLocked();
    CollectReleasesLocked();
    trace_.Finish(found->trace, *session);
    if (!error.ok()) session->Fail(error);
    const Consumer gone = *found;
    consumers_.erase(found);
    // What nobody holds any more is taken back below. In a queue the bytes go to another session, which does
    // the work.
    const bool pass_on = parts_.spec.sharing == Sharing::kQueue && !consumers_.empty();
    for (uint32_t slot = 0; pass_on && slot < slots_.count(); ++slot) {
      if (gone.owed[slot] != 0) LendLocked(slot);
    }
    left = consumers_.size();
    tasks = AdvanceLocked();
  }
  Submit(std::move(tasks));
  return left;
}

bool Feed::HasBegun() const {
  const MutexLock lock(mutex_);
  return phase_ != Phase::kWaiting;
}

void Feed::ReadReleases() {
  Tasks tasks;
  {
    MutexLock lock(mutex_);
    tasks = AdvanceLocked();
  }
  Submit(std::move(tasks));
}

void Feed::Drain() {
  Tasks tasks;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    tasks = AdvanceLocked();  // plans nothing: what is planned goes on, or enters kDraining if nothing is
  }
  Submit(std::move(tasks));
}

void Feed::Stop() {
  abandoned_.store(true, std::memory_order_relaxed);
  Drain();
  MutexLock lock(mutex_);
  while (slots_.CountIn(SlotState::kFilling) > 0) idle_.Wait(mutex_);
}

Feed::Tasks Feed::AdvanceLocked() {
  AccountLocked();
  Tasks tasks;
  CollectReleasesLocked();
  PublishReadyLocked();
  PlanLocked();
  BeginPiecesLocked(&tasks);
  if (in_flight_.empty()) {
    // Abandoned, the last batches may have been lost: that is no end of the epoch.
    const bool abandoned = abandoned_.load(std::memory_order_relaxed);
    if (phase_ == Phase::kRunning && AllPlannedLocked() && !abandoned) {
      SetStarvedLocked(MayComeBackLocked());
      CollectReleasesLocked();  // what came before the client could see that
      if (!MayComeBackLocked()) EnterLocked(Phase::kEnded);
    } else if (stopping_ && (phase_ == Phase::kRunning || phase_ == Phase::kWaiting)) {
      EnterLocked(Phase::kDraining);
    }
  }
  share_->ready.store(slots_.CountIn(SlotState::kReady) + slots_.CountIn(SlotState::kLent),
                      std::memory_order_relaxed);
  return tasks;
}

bool Feed::MayComeBackLocked() const {
  if (parts_.spec.sharing != Sharing::kQueue || consumers_.size() < 2 || stopping_) return false;
  return std::any_of(consumers_.begin(), consumers_.end(), [](const Consumer& consumer) {
    const bool owes =
        std::any_of(consumer.owed.begin(), consumer.owed.end(), [](uint64_t g) { return g != 0; });
    return owes && consumer.pages->Stats().taken < consumer.pages->published();
  });
}

void Feed::CollectReleasesLocked() {
  for (uint32_t slot = 0; slot < slots_.count(); ++slot) {
    if (slots_.state(slot) != SlotState::kLent) continue;
    bool held = false;
    for (Consumer& consumer : consumers_) {
      if (consumer.owed[slot] == 0) continue;
      const uint64_t word = consumer.pages->Released(slot);
      if (word == consumer.owed[slot]) {
        consumer.owed[slot] = 0;
      } else {
        held = true;
        if (word != consumer.seen[slot]) {
          ++consumer.ignored_releases;
          ++counters_.ignored_releases;
        }
      }
      consumer.seen[slot] = word;
    }
    if (held) continue;
    counters_.lent.Add(Nanoseconds(accounted_ - since_[slot]));
    trace_.SlotReleased(slot);
    slots_.MarkFree(slot);
  }
}

void Feed::PublishReadyLocked() {
  while (!in_flight_.empty() && slots_.state(in_flight_.front()) == SlotState::kReady) {
    const uint32_t slot = in_flight_.front();
    Batch& batch = batches_[slot];
    if (phase_ != Phase::kRunning || abandoned_.load(std::memory_order_relaxed)) {
      slots_.Abandon(slot);
      in_flight_.pop_front();
      continue;
    }
    if (batch.undelivered) {
      // The daemon is about to end: clients get these batches from the next one.
      abandoned_.store(true, std::memory_order_relaxed);
      stopping_ = true;
      continue;
    }
    if (!batch.status.ok()) {
      error_ = batch.status;
      EnterLocked(Phase::kFailed);
      continue;
    }
    in_flight_.pop_front();
    ++counters_.batches;
    counters_.samples += batch.samples;
    counters_.bytes += batch.samples * bytes_per_sample_;
    counters_.epoch = batch.plan.epoch;
    counters_.batch_index = batch.plan.batch_index;
    slots_.MarkLent(slot);
    LendLocked(slot);
    NoteBarrenLocked(batch);
  }
}

void Feed::NoteBarrenLocked(const Batch& batch) {
  if (batch.samples > 0 || batch.skipped == 0) {
    barren_batches_ = 0;
    return;
  }
  if (barren_batches_++ == 0) first_bad_ = batch.first_bad;
  if (barren_batches_ < parts_.sampler.batches_per_epoch()) return;
  error_ = DataLoss("on_bad_sample skip: a whole epoch (" + std::to_string(barren_batches_) +
                    " batches) had no good sample; the first bad one: " + first_bad_);
  EnterLocked(Phase::kFailed);
}

void Feed::LendLocked(uint32_t slot) {
  const Batch& batch = batches_[slot];
  const Sampler::Start here{batch.plan.epoch, batch.plan.batch_index};
  BatchDescriptor descriptor{};
  descriptor.generation = slots_.generation(slot);
  descriptor.epoch = batch.plan.epoch;
  descriptor.batch_index = batch.plan.batch_index;
  descriptor.position = batch.plan.next_position;
  descriptor.slot = slot;
  descriptor.samples = batch.samples;
  descriptor.skipped = batch.skipped;
  descriptor.flags = batch.plan.last_of_epoch ? kFlagLastOfEpoch : 0;

  since_[slot] = accounted_;
  const uint64_t now_ns = trace_.On() ? TraceClockNs() : 0;
  const auto lend = [&](Consumer& consumer) {
    consumer.owed[slot] = descriptor.generation;
    trace_.Publishing(consumer.trace, *consumer.pages, descriptor, now_ns);
    consumer.pages->Publish(descriptor);
  };
  bool lent = false;
  if (parts_.spec.sharing == Sharing::kQueue) {
    const auto load = [](const Consumer& c) {
      return std::count_if(c.owed.begin(), c.owed.end(), [](uint64_t g) { return g != 0; });
    };
    const auto least =
        std::min_element(consumers_.begin(), consumers_.end(),
                         [&](const Consumer& a, const Consumer& b) { return load(a) < load(b); });
    if (least != consumers_.end()) {
      lend(*least);
      lent = true;
    }
  } else {
    for (Consumer& consumer : consumers_) {
      if (consumer.start && Before(here, *consumer.start))
        continue;  // it has had this batch before it came back
      lend(consumer);
      lent = true;
    }
  }
  if (lent) {
    trace_.SlotLent(slot, descriptor, now_ns);
  } else {
    slots_.MarkFree(slot);
  }
}

void Feed::PlanLocked() {
  if (phase_ != Phase::kRunning) return;
  while (!stopping_ && !consumers_.empty() && !AllPlannedLocked()) {
    std::optional<uint32_t> slot = slots_.TakeFree();
    if (!slot) {
      // Ask for doorbells, then look once more: a release stored before the client could see the request is
      // found here.
      SetStarvedLocked(true);
      CollectReleasesLocked();
      slot = slots_.TakeFree();
      if (!slot) return;
    }
    Batch& batch = batches_[*slot];
    batch = Batch{};
    since_[*slot] = accounted_;
    batch.plan = parts_.sampler.Plan(next_.epoch, next_.batch_index);
    in_flight_.push_back(*slot);
    unbegun_.push_back(std::make_shared<Fill>(*this, *slot, batch.plan));
    next_ = batch.plan.last_of_epoch ? Sampler::Start{next_.epoch + 1, 0}
                                     : Sampler::Start{next_.epoch, next_.batch_index + 1};
    if (!detours_.empty() && !Before(next_, detours_.back().end)) {
      next_ = detours_.back().resume;
      detours_.pop_back();
    }
  }
  if (!in_flight_.empty() || !AllPlannedLocked()) SetStarvedLocked(false);  // else AdvanceLocked says
}

void Feed::BeginPiecesLocked(Tasks* tasks) {
  while (!unbegun_.empty()) {
    std::shared_ptr<FillTask> task = unbegun_.front()->Begin();
    if (task == nullptr) return;  // the next delivery's end has memory
    pieces_filling_.fetch_add(1, std::memory_order_relaxed);
    tasks->push_back(std::move(task));
    if (unbegun_.front()->begun()) unbegun_.pop_front();
  }
}

bool Feed::AllPlannedLocked() const {
  return parts_.spec.epochs != 0 && next_.epoch >= parts_.spec.epochs;
}

void Feed::SetStarvedLocked(bool starved) {
  if (starved_ == starved) return;
  starved_ = starved;
  for (Consumer& consumer : consumers_) consumer.pages->SetStarved(starved);
  parts_.arena->SetWaiting(shared_from_this(), starved);
}

void Feed::EnterLocked(Phase phase) {
  phase_ = phase;
  if (phase != Phase::kRunning) SetStarvedLocked(false);  // it will fill no slot any more
  for (Consumer& consumer : consumers_) {
    if (phase == Phase::kDraining) consumer.pages->SetState(FeedState::kDraining);
    if (phase == Phase::kEnded) consumer.pages->SetState(FeedState::kEnded);
    if (phase == Phase::kFailed) consumer.pages->Fail(error_);
  }
}

void Feed::Submit(Tasks tasks) {
  for (std::shared_ptr<FillTask>& task : tasks) workers_.Submit(std::move(task));
}

void Feed::OnFilled(uint32_t slot, Batch batch, std::vector<BadSampleNote> bad) {
  MutexLock lock(mutex_);
  AccountLocked();
  counters_.filling.Add(Nanoseconds(accounted_ - since_[slot]));
  batch.delivering = true;
  batches_[slot] = std::move(batch);
  counters_.bad_samples += bad.size();
  for (BadSampleNote& note : bad) counters_.last_bad_samples.push_back(std::move(note));
  auto& kept = counters_.last_bad_samples;
  if (kept.size() > kBadSamplesKept) kept.erase(kept.begin(), kept.end() - kBadSamplesKept);
}

void Feed::BeginPieces() {
  Tasks tasks;
  {
    MutexLock lock(mutex_);
    if (!unbegun_.empty()) AccountLocked();  // until now the copies may have been what all waited for
    BeginPiecesLocked(&tasks);
  }
  Submit(std::move(tasks));
}

void Feed::OnDelivered(uint32_t slot, const Status& status) {
  Tasks tasks;
  {
    MutexLock lock(mutex_);
    if (!status.ok()) batches_[slot].undelivered = true;
    slots_.MarkReady(slot);
    tasks = AdvanceLocked();
    idle_.NotifyAll();
  }
  Submit(std::move(tasks));
}

}  // namespace pinfeed
