// SPDX-License-Identifier: Apache-2.0
#include "server/loading/batch_fill.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

namespace pinfeed {

// Purpose: one piece, as the workers see it.
class Feed::Fill::PieceTask final : public FillTask {
 public:
  PieceTask(std::shared_ptr<Feed> feed, std::shared_ptr<Fill> fill, size_t index)
      : FillTask(feed->share_.share(), Samples(*fill, index), feed->chunk_samples_),
        feed_(std::move(feed)),
        fill_(std::move(fill)),
        index_(index) {}

  void Run(uint32_t begin, uint32_t end, SampleScratch& scratch) override {
    const Piece& piece = fill_->pieces_[index_].piece;
    fill_->Load(piece, piece.begin + begin, piece.begin + end, scratch);
  }
  void Done() override { fill_->Filled(index_); }

 private:
  static uint32_t Samples(const Fill& fill, size_t index) {
    return fill.pieces_[index].piece.end - fill.pieces_[index].piece.begin;
  }

  const std::shared_ptr<Feed> feed_;  // so that the arena outlives every write
  const std::shared_ptr<Fill> fill_;
  const size_t index_;
};

Feed::Fill::Fill(Feed& feed, uint32_t slot, const BatchPlan& plan)
    : feed_(feed), slot_(slot), plan_(plan), planned_ns_(feed.trace_.On() ? TraceClockNs() : 0) {
  const uint32_t most = std::max(1U, feed.parts_.arena->piece_samples());
  pieces_.resize(plan.samples / most + (plan.samples % most == 0 ? 0 : 1));
  for (uint32_t i = 0, begin = 0; i < pieces_.size(); ++i, begin += most)
    pieces_[i].piece = {slot, begin, std::min(plan.samples, begin + most), 0};
  undelivered_ = pieces_.size();
}

std::shared_ptr<FillTask> Feed::Fill::Begin() {
  if (!feed_.parts_.arena->Take(&pieces_[next_].piece)) return nullptr;
  return std::make_shared<PieceTask>(feed_.shared_from_this(), shared_from_this(), next_++);
}

void Feed::Fill::Load(const Piece& piece, uint32_t begin, uint32_t end, SampleScratch& scratch) {
  const Parts& parts = feed_.parts_;
  if (Status memory = parts.arena->Prepare(piece, begin, end); !memory.ok()) {
    const MutexLock lock(mutex_);
    memory_ = std::move(memory);
    return;
  }
  const std::vector<TensorPlace>& tensors = parts.layout.tensors;
  std::vector<std::span<std::byte>> places(tensors.size());
  for (size_t t = 0; t < places.size(); ++t) {
    places[t] = {parts.arena->FillAddress(piece, t) + (begin - piece.begin) * tensors[t].sample_bytes,
                 tensors[t].sample_bytes};
  }
  SampleTimes sum;
  std::optional<WorkSpans> spans;
  if (feed_.trace_.On()) feed_.trace_.Work(plan_, slot_, end - begin, spans);
  const BatchSamples ids = parts.sampler.SamplesOf(plan_);
  for (uint32_t i = begin; i < end; ++i) {
    if (feed_.abandoned_.load(std::memory_order_relaxed) || i > first_failed_.load(std::memory_order_relaxed))
      break;
    const SampleKey key{ids[i], plan_.epoch};
    scratch.Begin(key.id);
    SampleTimes times;
    times.spans = spans ? &*spans : nullptr;
    Status status = parts.loader->Load(key, places, scratch, times);
    sum.read_ns += times.read_ns;
    sum.decode_ns += times.decode_ns;
    scratch.durations().Record(times);
    if (!status.ok()) {
      if (parts.spec.on_bad_sample == OnBadSample::kZero) parts.loader->WriteZeros(key, places);
      Bad(i, std::move(status));
    }
    for (std::span<std::byte>& place : places) place = {place.data() + place.size(), place.size()};
  }
  feed_.read_ns_.fetch_add(sum.read_ns, std::memory_order_relaxed);
  feed_.decode_ns_.fetch_add(sum.decode_ns, std::memory_order_relaxed);
}

void Feed::Fill::Bad(uint32_t index, Status status) {
  if (feed_.parts_.spec.on_bad_sample == OnBadSample::kFail) {
    uint32_t first = first_failed_.load(std::memory_order_relaxed);
    while (index < first && !first_failed_.compare_exchange_weak(first, index, std::memory_order_relaxed)) {
    }
  }
  MutexLock lock(mutex_);
  bad_.emplace(index, std::move(status));
}

void Feed::Fill::Filled(size_t piece) {
  feed_.pieces_filling_.fetch_sub(1, std::memory_order_relaxed);
  DeliverFrom(piece);
  // This worker goes on by itself if it can: waking one costs the copy thread more.
  if (pieces_.size() > 1) feed_.BeginPieces();
}

void Feed::Fill::DeliverFrom(size_t piece) {
  {
    const MutexLock lock(mutex_);
    pieces_[piece].filled = true;
    if (delivering_) return;
    delivering_ = true;
  }
  for (;;) {
    size_t next = 0;
    {
      const MutexLock lock(mutex_);
      if (to_deliver_ == pieces_.size() || !pieces_[to_deliver_].filled) {
        delivering_ = false;
        return;
      }
      next = to_deliver_++;
    }
    Deliver(pieces_[next].piece, next + 1 == pieces_.size());
  }
}

void Feed::Fill::Deliver(const Piece& piece, bool last) {
  SlotRange landing = Compact(piece);
  landing.last = last;
  landed_ += landing.samples;
  bool deliver = false;
  if (last) {
    deliver = Conclude();
  } else {
    const MutexLock lock(mutex_);
    const bool failed = !bad_.empty() && feed_.parts_.spec.on_bad_sample == OnBadSample::kFail;
    deliver = memory_.ok() && delivery_.ok() && !failed;
  }
  if (!deliver || feed_.abandoned_.load(std::memory_order_relaxed)) {
    feed_.parts_.arena->Return(piece);
    return Delivered(piece, OkStatus(), {});
  }
  feed_.parts_.arena->Deliver(
      piece, landing,
      [feed = feed_.shared_from_this(), self = shared_from_this(), piece](
          const Status& status, const CopyTime& time) { self->Delivered(piece, status, time); });
}

SlotRange Feed::Fill::Compact(const Piece& piece) {
  SlotRange landing{landed_, piece.end - piece.begin, false};
  if (feed_.parts_.spec.on_bad_sample != OnBadSample::kSkip) return landing;
  std::vector<uint32_t> bad;  // within the piece
  {
    const MutexLock lock(mutex_);
    if (!memory_.ok()) return landing;  // nothing there is to be touched
    for (auto at = bad_.lower_bound(piece.begin); at != bad_.end() && at->first < piece.end; ++at)
      bad.push_back(at->first - piece.begin);
  }
  if (bad.empty()) return landing;
  landing.samples -= static_cast<uint32_t>(bad.size());
  for (size_t t = 0; t < feed_.parts_.layout.tensors.size(); ++t) {
    const uint64_t bytes = feed_.parts_.layout.tensors[t].sample_bytes;
    std::byte* const first = feed_.parts_.arena->FillAddress(piece, t);
    uint32_t to = bad.front();
    for (uint32_t from = to, next_bad = 0; from < piece.end - piece.begin; ++from) {
      if (next_bad < bad.size() && bad[next_bad] == from) {
        ++next_bad;
      } else {
        std::memcpy(first + to++ * bytes, first + from * bytes, bytes);
      }
    }
  }
  return landing;
}

bool Feed::Fill::Conclude() {
  std::map<uint32_t, Status> bad;
  Batch batch;
  {
    MutexLock lock(mutex_);
    bad.swap(bad_);
    batch.status = memory_;
  }
  if (planned_ns_ != 0 && feed_.trace_.On()) {
    TraceSpan span;
    span.kind = SpanKind::kFill;
    span.slot = slot_;
    span.samples = plan_.samples;
    span.epoch = plan_.epoch;
    span.batch = plan_.batch_index;
    span.begin_ns = planned_ns_;
    span.end_ns = TraceClockNs();
    feed_.trace_.Record(span);
  }
  batch.plan = plan_;
  batch.samples = plan_.samples;
  std::vector<BadSampleNote> notes;
  notes.reserve(bad.size());
  const BatchSamples ids = feed_.parts_.sampler.SamplesOf(plan_);
  for (const auto& [index, status] : bad) notes.push_back({ids[index], status.message()});
  if (!bad.empty() && batch.status.ok()) {
    switch (feed_.parts_.spec.on_bad_sample) {
      case OnBadSample::kFail:
        notes.erase(notes.begin() + 1,
                    notes.end());  // which others were tried depends on the workers: name the first only
        batch.status = bad.begin()->second.WithContext("batch " + std::to_string(plan_.batch_index) +
                                                       " of epoch " + std::to_string(plan_.epoch) +
                                                       " (on_bad_sample: \"skip\" or \"zero\" would go on)");
        break;
      case OnBadSample::kSkip:
        batch.samples = landed_;
        batch.skipped = static_cast<uint32_t>(bad.size());
        break;
      case OnBadSample::kZero:
        break;
    }
    if (bad.size() == plan_.samples) batch.all_bad = bad.begin()->second.message();
  }
  const bool ok = batch.status.ok();
  feed_.OnFilled(slot_, std::move(batch), std::move(notes));
  return ok;
}

void Feed::Fill::Delivered(const Piece& piece, const Status& status, const CopyTime& time) {
  if (time.end_ns != 0 && feed_.trace_.On()) feed_.trace_.Copied(slot_, plan_, piece.end - piece.begin, time);
  std::optional<Status> all;
  {
    const MutexLock lock(mutex_);
    if (delivery_.ok()) delivery_ = status;
    if (--undelivered_ == 0) all = delivery_;
  }
  if (all) return feed_.OnDelivered(slot_, *all);
  feed_.BeginPieces();
}

}  // namespace pinfeed
