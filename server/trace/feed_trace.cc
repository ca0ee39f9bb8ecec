// SPDX-License-Identifier: Apache-2.0
#include "server/trace/feed_trace.h"

#include <algorithm>

namespace pinfeed {
namespace {

// A trainer that waits in slices of a timeout is between two of them for less than this.
constexpr uint64_t kQuietNs = 2'000'000;

}  // namespace

void FeedTrace::Record(TraceSpan span) const {
  span.feed = feed_;
  tracer_->Record(owner_, {&span, 1});
}

void FeedTrace::Work(const BatchPlan& plan, uint32_t slot, uint32_t samples,
                     std::optional<WorkSpans>& spans) const {
  TraceSpan like;
  like.feed = feed_;
  like.epoch = plan.epoch;
  like.batch = plan.batch_index;
  like.slot = slot;
  like.samples = samples;
  spans.emplace(*tracer_, owner_, like);
}

void FeedTrace::Copied(uint32_t slot, const BatchPlan& plan, uint32_t samples, const CopyTime& time) const {
  TraceSpan span;
  span.kind = SpanKind::kCopy;
  span.slot = slot;
  span.thread = ThreadNumber();
  span.samples = samples;
  span.epoch = plan.epoch;
  span.batch = plan.batch_index;
  span.begin_ns = time.begin_ns;
  span.end_ns = time.end_ns;
  Record(span);
}

void FeedTrace::FollowRun() {
  if (run_ == tracer_->run()) return;
  run_ = tracer_->run();
  lendings_.fill({});
}

void FeedTrace::SlotLent(uint32_t slot, const BatchDescriptor& batch, uint64_t now_ns) {
  if (now_ns == 0 || !On()) return;
  FollowRun();
  Draw(slot, now_ns, true);  // a queue passes on what a session had that left
  lendings_[slot] = {now_ns, batch.epoch, batch.batch_index, batch.samples};
}

void FeedTrace::SlotReleased(uint32_t slot) {
  if (!On()) return;
  FollowRun();
  Draw(slot, TraceClockNs(), false);
}

void FeedTrace::FinishSlots() {
  if (!On()) return;
  FollowRun();
  const uint64_t now = TraceClockNs();
  for (uint32_t slot = 0; slot < kMaxSlots; ++slot) Draw(slot, now, true);
}

void FeedTrace::Draw(uint32_t slot, uint64_t now_ns, bool open) {
  Lending& lending = lendings_[slot];
  if (lending.since_ns == 0) return;
  TraceSpan span;
  span.kind = SpanKind::kLent;
  span.open = open;
  span.slot = slot;
  span.samples = lending.samples;
  span.epoch = lending.epoch;
  span.batch = lending.batch;
  span.begin_ns = lending.since_ns;
  span.end_ns = now_ns;
  Record(span);
  lending = {};
}

void FeedTrace::Follow(ClientTrace& client, const ControlPages& pages) const {
  if (client.run_ == tracer_->run()) return;
  client = ClientTrace();
  client.run_ = tracer_->run();
  client.taken_ = std::min(pages.Stats().taken, pages.published());
  client.since_ns_ = TraceClockNs();
}

void FeedTrace::Publishing(ClientTrace& client, const ControlPages& pages, const BatchDescriptor& batch,
                           uint64_t now_ns) {
  if (now_ns == 0 || !On()) return;
  Follow(client, pages);
  Look(client, pages, now_ns);
  if (client.doing_ == ClientTrace::Doing::kWait && client.woken_ns_ == 0) client.woken_ns_ = now_ns;
  const uint64_t sequence = pages.published();
  client.published_[sequence % kMaxSlots] = {sequence, batch.epoch, batch.batch_index, batch.samples};
  TraceSpan span;
  span.kind = SpanKind::kPublish;
  span.session = pages.session();
  span.slot = batch.slot;
  span.samples = batch.samples;
  span.epoch = batch.epoch;
  span.batch = batch.batch_index;
  span.begin_ns = span.end_ns = now_ns;
  Record(span);
}

void FeedTrace::LookAt(ClientTrace& client, const ControlPages& pages) {
  if (!On()) return;
  Follow(client, pages);
  Look(client, pages, TraceClockNs());
}

void FeedTrace::Finish(ClientTrace& client, const ControlPages& pages) {
  if (!On()) return;
  Follow(client, pages);
  const uint64_t now = TraceClockNs();
  Look(client, pages, now);
  Turn(client, pages, ClientTrace::Doing::kUnknown, now, true);
}

void FeedTrace::Look(ClientTrace& client, const ControlPages& pages, uint64_t now_ns) const {
  using Doing = ClientTrace::Doing;
  const ControlPages::ClientStats stats = pages.Stats();
  const uint64_t taken = std::min(stats.taken, pages.published());
  const bool waits = stats.waiting_since_ns != 0 && stats.waiting_since_ns <= now_ns;
  const uint64_t wait_began = std::max(stats.waiting_since_ns, client.since_ns_);
  if (taken > client.taken_) {
    // Taken as soon as it was published, if the trainer waited for it; else some time since the last look.
    uint64_t at = client.woken_ns_ != 0 ? client.woken_ns_ : now_ns;
    if (waits) at = std::min(at, std::max(wait_began, client.since_ns_));
    Turn(client, pages, Doing::kStep, at);
    client.taken_ = taken;
  }
  if (waits && client.doing_ != Doing::kWait) Turn(client, pages, Doing::kWait, wait_began);
  if (waits) client.quiet_ns_ = 0;
  // It was woken for a batch without samples, which it passes over.
  if (waits && client.woken_ns_ != 0 && stats.waiting_since_ns > client.woken_ns_) client.woken_ns_ = 0;
  if (waits || client.doing_ != Doing::kWait || client.woken_ns_ != 0) return;
  if (client.quiet_ns_ == 0) client.quiet_ns_ = now_ns;
  if (now_ns - client.quiet_ns_ >= kQuietNs) Turn(client, pages, Doing::kStep, client.quiet_ns_);
}

void FeedTrace::Turn(ClientTrace& client, const ControlPages& pages, ClientTrace::Doing to, uint64_t at_ns,
                     bool open) const {
  using Doing = ClientTrace::Doing;
  at_ns = std::max(at_ns, client.since_ns_);
  // A step is about the batch taken last, a wait about the one after it.
  const uint64_t sequence = client.doing_ == Doing::kWait ? client.taken_ : client.taken_ - 1;
  const ClientTrace::Published& batch = client.published_[sequence % kMaxSlots];
  const bool known = batch.sequence == sequence && sequence != UINT64_MAX;
  if (at_ns > client.since_ns_ &&
      (client.doing_ == Doing::kWait || (client.doing_ == Doing::kStep && known))) {
    TraceSpan span;
    span.kind = client.doing_ == Doing::kWait ? SpanKind::kWait : SpanKind::kStep;
    span.open = open;
    span.session = pages.session();
    if (known) {
      span.epoch = batch.epoch;
      span.batch = batch.batch;
      span.samples = batch.samples;
    }
    span.begin_ns = client.since_ns_;
    span.end_ns = at_ns;
    Record(span);
  }
  client.doing_ = to;
  client.since_ns_ = at_ns;
  client.woken_ns_ = 0;
  client.quiet_ns_ = 0;
}

}  // namespace pinfeed
