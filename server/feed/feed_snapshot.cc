// SPDX-License-Identifier: Apache-2.0
// The snapshot of a feed for status, metrics and traces.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "common/spec/names.h"
#include "server/feed/batch_cycle.h"
#include "server/loading/producer_group.h"
#include "server/loading/resident_data.h"

namespace pinfeed {
namespace {

// The name of a batcher, or of a configured or produced dataset, otherwise the last component of its path.
std::string NameOf(const FeedSpec& feed) {
  if (feed.batcher) return feed.group;
  const DatasetSpec& spec = feed.dataset;
  if (!spec.name.empty()) return spec.name;
  if (spec.produced) return spec.produced->name;
  const size_t end = spec.path.find_last_not_of('/');
  if (end == std::string::npos) return "/";
  const size_t slash = spec.path.find_last_of('/', end);
  return spec.path.substr(slash + 1, end - slash);
}

}  // namespace

void BatchCycle::Account() {
  StallAccount::State state;
  state.running = phase_ == Phase::kRunning;
  if (state.running) {
    const ProducerTimes times = parts_.producer->times();
    state.full = slots_.CountIn(SlotState::kFree) == 0 && slots_.CountIn(SlotState::kFilling) == 0;
    state.cause = batches_.Cause(filling_.pieces_filling.load(std::memory_order_relaxed) != 0);
    // What a filled batch waits for in host memory is no copy.
    if (state.cause == StallCause::kCopy && parts_.arena->backend() == Backend::kHost)
      state.cause = std::nullopt;
    state.work = {0, filling_.share->WorkedNs() + times.processes_ns, times.read_ns, times.decode_ns};
    state.loading_ns = times.loading_ns;
    state.working = filling_.share->Running() != 0 || times.processes_at_work;
  }
  stalls_.Account(*membership_, state);
}

char BatchCycle::SlotLetter(uint32_t slot) const {
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

void BatchCycle::ObserveForTrace(bool last) {
  for (Participant* member : membership_->members()) {
    if (last) {
      trace_.Finish(member->trace, *member->pages);
    } else {
      trace_.Observe(member->trace, *member->pages);
    }
  }
  for (uint32_t slot = 0; slot < slots_.count(); ++slot) {
    if (slots_.state(slot) == SlotState::kLent && membership_->IsReleased(slot)) trace_.SlotReleased(slot);
  }
  if (last) trace_.FinishSlots();
}

FeedSnapshot BatchCycle::Snapshot() {
  Account();
  static constexpr std::array<const char*, 5> kPhases = {"waiting", "running", "draining", "ended", "failed"};
  FeedSnapshot snapshot = counters_;
  snapshot.id = parts_.id;
  snapshot.dataset = parts_.producer->dataset().path;
  snapshot.name = NameOf(parts_.spec);
  snapshot.dataset_samples = parts_.producer->dataset().samples;
  snapshot.batch_size = parts_.spec.batch_size;
  snapshot.shuffled = parts_.spec.order == Order::kShuffle;
  snapshot.sharing = parts_.spec.sharing;
  if (parts_.spec.sharing != Sharing::kExclusive) snapshot.group_size = std::max(1U, parts_.spec.group_size);
  snapshot.decode = DecodeText(parts_.spec.decode, parts_.spec.gpu_share);
  snapshot.on_device = parts_.arena->backend() != Backend::kHost;
  snapshot.resident_note = parts_.resident_note;
  if (const std::shared_ptr<ResidentData> resident = parts_.producer->resident()) {
    snapshot.resident_bytes = resident->arena().mapped_bytes();
    snapshot.resident_loading = !resident->loaded();
  }
  snapshot.state = kPhases[static_cast<size_t>(phase_)];
  snapshot.error = error_;
  snapshot.slots_free = slots_.CountIn(SlotState::kFree);
  snapshot.slots_filling = slots_.CountIn(SlotState::kFilling);
  snapshot.slots_ready = slots_.CountIn(SlotState::kReady) + membership_->waiting();
  snapshot.slots_lent = slots_.CountIn(SlotState::kLent) - membership_->waiting();
  snapshot.bad_samples = bad_samples_.count();
  snapshot.last_bad_samples = bad_samples_.newest();
  snapshot.ignored_releases = membership_->ignored_releases();
  for (uint32_t slot = 0; slot < slots_.count(); ++slot) snapshot.slot_states += SlotLetter(slot);
  const uint32_t workers = parts_.producer->max_workers(*filling_.share);
  snapshot.max_workers = workers == UINT32_MAX ? 0 : workers;
  snapshot.arena_bytes = parts_.arena->bytes();
  const ProducerTimes times = parts_.producer->times();
  snapshot.read_ns = times.read_ns;
  snapshot.decode_ns = times.decode_ns;
  const CacheUse cache = parts_.producer->cache_use();
  snapshot.cache_hits = cache.hits;
  snapshot.cache_misses = cache.misses;
  snapshot.read_ahead = parts_.producer->read_ahead_use();
  snapshot.staged_bytes = times.staged_bytes;
  if (const std::shared_ptr<ProducerGroup> processes = parts_.producer->processes()) {
    const ProducerGroup::Counts counts = processes->counts();
    snapshot.producers = counts.producers;
    snapshot.producers_busy = counts.busy;
    ProducerGroup::State state = processes->state();
    snapshot.slowest_producer_pid = state.slowest_pid;
    snapshot.slowest_producer_task = std::move(state.slowest_task);
    snapshot.slowest_producer_ns = state.slowest_ns;
    snapshot.data_end = std::move(state.data_end);
    snapshot.batches_dealt_again = counts.dealt_again;
    snapshot.one_off_batches = counts.one_off.batches;
    snapshot.one_off_bytes = counts.one_off.bytes;
    snapshot.one_off_peak_bytes = counts.one_off.peak_bytes;
  }
  if (const std::shared_ptr<BatcherQueue> requests = parts_.producer->requests())
    snapshot.requests = requests->counts();
  stalls_.AddTo(snapshot);
  return snapshot;
}

ParticipantSnapshot BatchCycle::SnapshotOf(const Participant& participant) const {
  return membership_->Snapshot(participant, StallAccount::Clock::now());
}

}  // namespace pinfeed
