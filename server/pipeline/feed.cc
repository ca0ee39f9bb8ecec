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
constexpr uint64_t kChunkBytes = 256 * 1024;

bool Before(const Sampler::Start& a, const Sampler::Start& b) {
  return std::tie(a.epoch, a.batch_index) < std::tie(b.epoch, b.batch_index);
}

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

Feed::Feed(Parts parts, WorkerPool& workers)
    : parts_(std::move(parts)),
      workers_(workers),
      share_(std::make_shared<FeedShare>()),
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
    if (phase_ == Phase::kEnded || phase_ == Phase::kDraining || stopping_) {
      return FailedPrecondition("attach to feed " + std::to_string(parts_.id) + ": it takes no new sessions");
    }
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
    consumers_.push_back({session, start, {}, {}, 0, 0});
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

size_t Feed::Detach(ControlPages* session) {
  Tasks tasks;
  size_t left = 0;
  {
    MutexLock lock(mutex_);
    const auto found = std::find_if(consumers_.begin(), consumers_.end(),
                                    [&](const Consumer& c) { return c.pages == session; });
    if (found == consumers_.end()) return consumers_.size();
    CollectReleasesLocked();
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

void Feed::ReadReleases() {
  Tasks tasks;
  {
    MutexLock lock(mutex_);
    tasks = AdvanceLocked();
  }
  Submit(std::move(tasks));
}

void Feed::Drain() {
  MutexLock lock(mutex_);
  stopping_ = true;
  AdvanceLocked();  // plans nothing: only publishes, and enters kDraining if nothing is being filled
}

void Feed::Stop() {
  abandoned_.store(true, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  stopping_ = true;
  AdvanceLocked();
  while (slots_.CountIn(SlotState::kFilling) > 0) idle_.Wait(mutex_);
}

Feed::Tasks Feed::AdvanceLocked() {
  AccountLocked();
  Tasks tasks;
  CollectReleasesLocked();
  PublishReadyLocked();
  PlanLocked(&tasks);
  if (in_flight_.empty()) {
    if (phase_ == Phase::kRunning && AllPlannedLocked()) {
      EnterLocked(Phase::kEnded);
    } else if (stopping_ && (phase_ == Phase::kRunning || phase_ == Phase::kWaiting)) {
      EnterLocked(Phase::kDraining);
    }
  }
  share_->ready.store(slots_.CountIn(SlotState::kReady) + slots_.CountIn(SlotState::kLent),
                      std::memory_order_relaxed);
  return tasks;
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
    if (!held) slots_.MarkFree(slot);
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
    if (batch.status.code() == Code::kUnavailable) {
      // The daemon lost what it delivers with and is about to end: clients get these batches from the next
      // one.
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
  }
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

  const auto lend = [&](Consumer& consumer) {
    consumer.owed[slot] = descriptor.generation;
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
  if (!lent) slots_.MarkFree(slot);
}

void Feed::PlanLocked(Tasks* tasks) {
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
    batch.plan = parts_.sampler.Plan(next_.epoch, next_.batch_index);
    in_flight_.push_back(*slot);
    tasks->push_back(std::make_shared<Fill>(shared_from_this(), *slot, batch.plan));
    next_ = batch.plan.last_of_epoch ? Sampler::Start{next_.epoch + 1, 0}
                                     : Sampler::Start{next_.epoch, next_.batch_index + 1};
    if (!detours_.empty() && !Before(next_, detours_.back().end)) {
      next_ = detours_.back().resume;
      detours_.pop_back();
    }
  }
  SetStarvedLocked(false);
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
  for (Consumer& consumer : consumers_) {
    if (phase == Phase::kDraining) consumer.pages->SetState(FeedState::kDraining);
    if (phase == Phase::kEnded) consumer.pages->SetState(FeedState::kEnded);
    if (phase == Phase::kFailed) consumer.pages->Fail(error_);
  }
}

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

void Feed::Submit(Tasks tasks) {
  for (std::shared_ptr<FillTask>& task : tasks) workers_.Submit(std::move(task));
}

void Feed::OnFilled(uint32_t slot, Batch batch, std::vector<BadSampleNote> bad) {
  const bool deliver = batch.status.ok() && !abandoned_.load(std::memory_order_relaxed);
  {
    MutexLock lock(mutex_);
    batches_[slot] = std::move(batch);
    counters_.bad_samples += bad.size();
    for (BadSampleNote& note : bad) counters_.last_bad_samples.push_back(std::move(note));
    auto& kept = counters_.last_bad_samples;
    if (kept.size() > kBadSamplesKept) kept.erase(kept.begin(), kept.end() - kBadSamplesKept);
  }
  if (!deliver) return OnDelivered(slot, OkStatus());
  parts_.arena->Deliver(
      slot, parts_.layout.slot_bytes,
      [self = shared_from_this(), slot](const Status& status) { self->OnDelivered(slot, status); });
}

void Feed::OnDelivered(uint32_t slot, const Status& status) {
  Tasks tasks;
  {
    MutexLock lock(mutex_);
    if (!status.ok()) batches_[slot].status = status;
    slots_.MarkReady(slot);
    tasks = AdvanceLocked();
    idle_.NotifyAll();
  }
  Submit(std::move(tasks));
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
