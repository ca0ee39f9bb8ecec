// SPDX-License-Identifier: Apache-2.0
#include "server/pipeline/fill.h"

#include <cstring>
#include <optional>
#include <utility>

namespace pinfeed {

std::span<std::byte> Feed::Fill::Place(size_t t, uint32_t index) const {
  const TensorPlace& tensor = feed_->parts_.layout.tensors[t];
  return {feed_->parts_.arena->FillAddress(slot_) + tensor.offset + index * tensor.sample_bytes,
          tensor.sample_bytes};
}

void Feed::Fill::Run(uint32_t begin, uint32_t end, SampleScratch& scratch) {
  const Parts& parts = feed_->parts_;
  if (Status memory = parts.arena->Prepare(slot_); !memory.ok()) {
    const MutexLock lock(mutex_);
    memory_ = std::move(memory);
    return;
  }
  std::vector<std::span<std::byte>> places(parts.layout.tensors.size());
  SampleTimes sum;
  std::optional<WorkSpans> spans;
  if (feed_->trace_.On()) feed_->trace_.Work(plan_, slot_, end - begin, spans);
  for (uint32_t i = begin; i < end; ++i) {
    if (feed_->abandoned_.load(std::memory_order_relaxed) ||
        i > first_failed_.load(std::memory_order_relaxed))
      break;
    for (size_t t = 0; t < places.size(); ++t) places[t] = Place(t, i);
    const SampleKey key{parts.sampler.SampleId(plan_, i), plan_.epoch};
    SampleTimes times;
    times.spans = spans ? &*spans : nullptr;
    Status status = parts.loader->Load(key, places, scratch, times);
    sum.read_ns += times.read_ns;
    sum.decode_ns += times.decode_ns;
    scratch.durations().Record(times);
    if (status.ok()) continue;
    if (parts.spec.on_bad_sample == OnBadSample::kZero) parts.loader->LoadZero(key, places);
    Bad(i, std::move(status));
  }
  feed_->read_ns_.fetch_add(sum.read_ns, std::memory_order_relaxed);
  feed_->decode_ns_.fetch_add(sum.decode_ns, std::memory_order_relaxed);
}

void Feed::Fill::Bad(uint32_t index, Status status) {
  if (feed_->parts_.spec.on_bad_sample == OnBadSample::kFail) {
    uint32_t first = first_failed_.load(std::memory_order_relaxed);
    while (index < first && !first_failed_.compare_exchange_weak(first, index, std::memory_order_relaxed)) {
    }
  }
  MutexLock lock(mutex_);
  bad_.emplace(index, std::move(status));
}

void Feed::Fill::Done() {
  std::map<uint32_t, Status> bad;
  Batch batch;
  {
    MutexLock lock(mutex_);
    bad.swap(bad_);
    batch.status = memory_;
  }
  if (planned_ns_ != 0 && feed_->trace_.On()) {
    TraceSpan span;
    span.kind = SpanKind::kFill;
    span.slot = slot_;
    span.samples = plan_.samples;
    span.epoch = plan_.epoch;
    span.batch = plan_.batch_index;
    span.begin_ns = planned_ns_;
    span.end_ns = TraceClockNs();
    feed_->trace_.Record(span);
  }
  batch.plan = plan_;
  batch.samples = plan_.samples;
  std::vector<BadSampleNote> notes;
  notes.reserve(bad.size());
  for (const auto& [index, status] : bad)
    notes.push_back({feed_->parts_.sampler.SampleId(plan_, index), status.message()});
  if (!bad.empty() && batch.status.ok()) {
    switch (feed_->parts_.spec.on_bad_sample) {
      case OnBadSample::kFail:
        notes.erase(notes.begin() + 1,
                    notes.end());  // which others were tried depends on the workers: name the first only
        batch.status = bad.begin()->second.WithContext("batch " + std::to_string(plan_.batch_index) +
                                                       " of epoch " + std::to_string(plan_.epoch) +
                                                       " (on_bad_sample: \"skip\" or \"zero\" would go on)");
        break;
      case OnBadSample::kSkip:
        batch.samples = Compact(bad);
        batch.skipped = static_cast<uint32_t>(bad.size());
        if (batch.samples == 0) batch.first_bad = bad.begin()->second.message();
        break;
      case OnBadSample::kZero:
        break;
    }
  }
  feed_->OnFilled(slot_, std::move(batch), std::move(notes));
}

uint32_t Feed::Fill::Compact(const std::map<uint32_t, Status>& bad) const {
  uint32_t to = 0;
  for (uint32_t from = 0; from < plan_.samples; ++from) {
    if (bad.contains(from)) continue;
    if (from != to) {
      for (size_t t = 0; t < feed_->parts_.layout.tensors.size(); ++t) {
        std::memcpy(Place(t, to).data(), Place(t, from).data(), Place(t, from).size());
      }
    }
    ++to;
  }
  return to;
}

}  // namespace pinfeed
