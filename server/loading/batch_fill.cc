// SPDX-License-Identifier: Apache-2.0
#include "server/loading/batch_fill.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

namespace pinfeed {

BatchFill::BatchFill(FillContext& context, Owner& owner, uint32_t slot, const BatchPlan& plan)
    : context_(context),
      owner_(owner),
      slot_(slot),
      plan_(plan),
      planned_ns_(context.recorder.On() ? TraceClockNs() : 0),
      pieces_(PiecesOf(context.arena, slot, plan.samples)),
      order_(pieces_.size()),
      undelivered_(pieces_.size()) {}

std::vector<BatchFill::PieceState> BatchFill::PiecesOf(const Arena& arena, uint32_t slot, uint32_t samples) {
  const uint32_t piece_samples = std::max(1U, arena.piece_samples());
  const std::vector<TensorPlace>& tensors = arena.layout().tensors;
  const bool packed = std::ranges::any_of(tensors, [](const auto& t) { return t.spec.packed(); });
  std::vector<PieceState> pieces;
  for (uint32_t begin = 0; begin < samples; begin = pieces.back().piece.end) {
    PieceState& state = pieces.emplace_back();
    state.piece = {slot, begin, begin + std::min(samples - begin, piece_samples), 0};
    if (packed) state.packed_rows = std::vector<std::atomic<uint64_t>>(tensors.size());
  }
  return pieces;
}

std::shared_ptr<PieceRequest> BatchFill::NextRequest() {
  PieceState& state = pieces_[next_];
  if (!context_.arena.Take(&state.piece)) return nullptr;
  context_.pieces_filling.fetch_add(1, std::memory_order_relaxed);
  return std::make_shared<PieceRequest>(PieceRequest::Parts{owner_.shared_from_this(), shared_from_this(),
                                                            next_++, plan_, state.piece, state.packed_rows,
                                                            context_, first_failed_});
}

void BatchFill::OnBad(uint32_t index, Status why) {
  if (context_.on_bad_sample == OnBadSample::kFail) {
    uint32_t first = first_failed_.load(std::memory_order_relaxed);
    while (index < first && !first_failed_.compare_exchange_weak(first, index, std::memory_order_relaxed)) {
    }
  }
  MutexLock lock(mutex_);
  bad_.emplace(index, std::move(why));
  if (bad_.size() <= kMaxBadNotes) return;
  more_bad_.resize(plan_.samples);
  more_bad_[bad_.rbegin()->first] = true;
  bad_.erase(std::prev(bad_.end()));
}

void BatchFill::OnLeftOut(uint32_t index) {
  const MutexLock lock(mutex_);
  left_out_.insert(index);
}

void BatchFill::OnComplete(size_t piece, Status status) {
  if (!status.ok()) {
    const MutexLock lock(mutex_);
    if (production_.ok()) production_ = std::move(status);
  }
  context_.pieces_filling.fetch_sub(1, std::memory_order_relaxed);
  DeliverFrom(piece);
  // This thread requests the next piece if it can: waking one costs the copy thread more.
  if (pieces_.size() > 1) owner_.OnPieceMemory();
}

void BatchFill::DeliverFrom(size_t piece) {
  std::optional<size_t> next;
  {
    const MutexLock lock(mutex_);
    if (!order_.AddFilled(piece)) return;
    next = order_.Next();
  }
  while (next) {
    Deliver(pieces_[*next], *next + 1 == pieces_.size());
    const MutexLock lock(mutex_);
    next = order_.Next();
  }
}

void BatchFill::Deliver(const PieceState& state, bool last) {
  const Piece& piece = state.piece;
  SlotRange range = Compact(piece);
  range.last = last;
  for (const std::atomic<uint64_t>& rows : state.packed_rows)
    range.packed_rows.push_back(rows.load(std::memory_order_relaxed));
  delivered_samples_ += range.samples;
  bool deliver = false;
  if (last) {
    deliver = Conclude();
  } else {
    const MutexLock lock(mutex_);
    const bool failed = !bad_.empty() && context_.on_bad_sample == OnBadSample::kFail;
    deliver = production_.ok() && delivery_.ok() && !failed;
  }
  if (!deliver || context_.stopped.load(std::memory_order_relaxed)) {
    context_.arena.Return(piece);
    return OnPieceDelivered(piece, OkStatus(), {});
  }
  context_.arena.Deliver(
      piece, range,
      [owner = owner_.shared_from_this(), self = shared_from_this(), piece](
          const Status& status, const CopyTime& time) { self->OnPieceDelivered(piece, status, time); });
}

SlotRange BatchFill::Compact(const Piece& piece) {
  SlotRange range{delivered_samples_, piece.end - piece.begin, false};
  std::vector<uint32_t> bad;  // within the piece
  {
    const MutexLock lock(mutex_);
    if (!production_.ok()) return range;  // nothing there is to be touched
    std::set<uint32_t> gaps(left_out_.lower_bound(piece.begin), left_out_.lower_bound(piece.end));
    if (context_.on_bad_sample == OnBadSample::kSkip) {
      for (auto at = bad_.lower_bound(piece.begin); at != bad_.end() && at->first < piece.end; ++at)
        gaps.insert(at->first);
      for (uint32_t index = piece.begin; index < piece.end && !more_bad_.empty(); ++index)
        if (more_bad_[index]) gaps.insert(index);
    }
    for (const uint32_t index : gaps) bad.push_back(index - piece.begin);
  }
  if (bad.empty()) return range;
  range.samples -= static_cast<uint32_t>(bad.size());
  for (size_t t = 0; t < context_.arena.layout().tensors.size(); ++t) {
    const TensorPlace& tensor = context_.arena.layout().tensors[t];
    if (tensor.spec.packed()) continue;  // the rows stay, their extents move
    const uint64_t bytes = tensor.sample_bytes;
    std::byte* const first = context_.arena.FillAddress(piece, t);
    uint32_t to = bad.front();
    for (uint32_t from = to, next_bad = 0; from < piece.end - piece.begin; ++from) {
      if (next_bad < bad.size() && bad[next_bad] == from) {
        ++next_bad;
      } else {
        std::memcpy(first + to++ * bytes, first + from * bytes, bytes);
      }
    }
  }
  return range;
}

bool BatchFill::Conclude() {
  std::map<uint32_t, Status> bad;
  FillResult result;
  {
    MutexLock lock(mutex_);
    bad.swap(bad_);
    result.more_bad.swap(more_bad_);
    result.status = production_;
  }
  if (planned_ns_ != 0 && context_.recorder.On()) {
    context_.recorder.Record({.kind = SpanKind::kFill,
                              .slot = slot_,
                              .samples = plan_.samples,
                              .epoch = plan_.epoch,
                              .batch = plan_.batch_index,
                              .begin_ns = planned_ns_,
                              .end_ns = TraceClockNs()});
  }
  result.samples = delivered_samples_;
  result.bad_samples =
      static_cast<uint32_t>(bad.size()) + static_cast<uint32_t>(std::ranges::count(result.more_bad, true));
  if (!bad.empty()) {
    const BatchSamples ids = context_.sampler.SamplesOf(plan_);
    for (const auto& [index, status] : bad)
      result.bad.push_back({ids[index], status.message(), status.code()});
  }
  if (!bad.empty() && result.status.ok()) {
    switch (context_.on_bad_sample) {
      case OnBadSample::kFail:
        result.bad.resize(1);  // which others were tried depends on the producer
        result.bad_samples = 1;
        result.more_bad.clear();
        result.status = bad.begin()->second.WithContext("batch " + std::to_string(plan_.batch_index) +
                                                        " of epoch " + std::to_string(plan_.epoch) +
                                                        " (on_bad_sample: \"skip\" or \"zero\" would go on)");
        break;
      case OnBadSample::kSkip:
        result.skipped = result.bad_samples;
        break;
      case OnBadSample::kZero:
        result.zeroed = result.bad_samples;
        break;
    }
    result.all_bad = result.bad_samples == plan_.samples;
  }
  const bool ok = result.status.ok();
  owner_.OnFilled(slot_, std::move(result));
  return ok;
}

void BatchFill::OnPieceDelivered(const Piece& piece, const Status& status, const CopyTime& time) {
  if (time.end_ns != 0 && context_.recorder.On())
    context_.recorder.Copied(slot_, plan_, piece.end - piece.begin, time);
  std::optional<Status> all;
  {
    const MutexLock lock(mutex_);
    if (delivery_.ok()) delivery_ = status;
    if (--undelivered_ == 0) all = delivery_;
  }
  if (all) return owner_.OnDelivered(slot_, *all);
  owner_.OnPieceMemory();
}

}  // namespace pinfeed
