// SPDX-License-Identifier: Apache-2.0
#include "server/trace/feed_trace.h"

#include <algorithm>

namespace pinfeed {
namespace {

// A trainer that waits in several timed calls is between two of them for less than this.
constexpr uint64_t kMaxWaitGapNs = 2'000'000;

}  // namespace

void FeedTrace::SyncRun() {
  if (run_ == recorder_.run()) return;
  run_ = recorder_.run();
  lendings_.fill({});
}

void FeedTrace::SlotLent(uint32_t slot, const BatchDescriptor& batch, uint64_t now_ns) {
  if (now_ns == 0 || !On()) return;
  SyncRun();
  EndLending(slot, now_ns, true);  // a queue hands a departed session's batch to another session
  lendings_[slot] = {now_ns, batch.epoch, batch.batch_index, batch.samples};
}

void FeedTrace::SlotReleased(uint32_t slot) {
  if (!On()) return;
  SyncRun();
  EndLending(slot, TraceClockNs(), false);
}

void FeedTrace::FinishSlots() {
  if (!On()) return;
  SyncRun();
  const uint64_t now = TraceClockNs();
  for (uint32_t slot = 0; slot < kMaxSlots; ++slot) EndLending(slot, now, true);
}

void FeedTrace::EndLending(uint32_t slot, uint64_t now_ns, bool open) {
  Lending& lending = lendings_[slot];
  if (lending.since_ns == 0) return;
  recorder_.Record({.kind = SpanKind::kLent,
                    .open = open,
                    .slot = slot,
                    .samples = lending.samples,
                    .epoch = lending.epoch,
                    .batch = lending.batch,
                    .begin_ns = lending.since_ns,
                    .end_ns = now_ns});
  lending = {};
}

void FeedTrace::SyncClient(ClientTrace& client, const ControlPages& pages) const {
  if (client.run_ == recorder_.run()) return;
  client = ClientTrace();
  client.run_ = recorder_.run();
  client.taken_ = std::min(pages.Stats().taken, pages.published());
  client.since_ns_ = TraceClockNs();
}

void FeedTrace::Publishing(ClientTrace& client, const ControlPages& pages, const BatchDescriptor& batch,
                           uint64_t now_ns) {
  if (now_ns == 0 || !On()) return;
  SyncClient(client, pages);
  Observe(client, pages, now_ns);
  if (client.activity_ == ClientTrace::Activity::kWait && client.woken_ns_ == 0) client.woken_ns_ = now_ns;
  const uint64_t sequence = pages.published();
  client.published_[sequence % kMaxSlots] = {sequence, batch.epoch, batch.batch_index, batch.samples};
  recorder_.Record({.kind = SpanKind::kPublish,
                    .slot = batch.slot,
                    .samples = batch.samples,
                    .session = pages.session(),
                    .epoch = batch.epoch,
                    .batch = batch.batch_index,
                    .begin_ns = now_ns,
                    .end_ns = now_ns});
}

void FeedTrace::Observe(ClientTrace& client, const ControlPages& pages) {
  if (!On()) return;
  SyncClient(client, pages);
  Observe(client, pages, TraceClockNs());
}

void FeedTrace::Finish(ClientTrace& client, const ControlPages& pages) {
  if (!On()) return;
  SyncClient(client, pages);
  const uint64_t now = TraceClockNs();
  Observe(client, pages, now);
  SwitchActivity(client, pages, ClientTrace::Activity::kUnknown, now, true);
}

void FeedTrace::Observe(ClientTrace& client, const ControlPages& pages, uint64_t now_ns) const {
  using Activity = ClientTrace::Activity;
  const ControlPages::ClientStats stats = pages.Stats();
  const uint64_t taken = std::min(stats.taken, pages.published());
  const bool waits = stats.waiting_since_ns != 0 && stats.waiting_since_ns <= now_ns;
  const uint64_t wait_began = std::max(stats.waiting_since_ns, client.since_ns_);
  if (taken > client.taken_) {
    // If the trainer was waiting, it took the batch when that was published. Otherwise it took it at some
    // time since the last observation.
    uint64_t at = client.woken_ns_ != 0 ? client.woken_ns_ : now_ns;
    if (waits) at = std::min(at, std::max(wait_began, client.since_ns_));
    SwitchActivity(client, pages, Activity::kStep, at);
    client.taken_ = taken;
  }
  if (waits && client.activity_ != Activity::kWait)
    SwitchActivity(client, pages, Activity::kWait, wait_began);
  if (waits) client.quiet_ns_ = 0;
  // It was woken for a batch without samples, which it skips.
  if (waits && client.woken_ns_ != 0 && stats.waiting_since_ns > client.woken_ns_) client.woken_ns_ = 0;
  if (waits || client.activity_ != Activity::kWait || client.woken_ns_ != 0) return;
  if (client.quiet_ns_ == 0) client.quiet_ns_ = now_ns;
  if (now_ns - client.quiet_ns_ >= kMaxWaitGapNs)
    SwitchActivity(client, pages, Activity::kStep, client.quiet_ns_);
}

void FeedTrace::SwitchActivity(ClientTrace& client, const ControlPages& pages, ClientTrace::Activity to,
                               uint64_t at_ns, bool open) const {
  using Activity = ClientTrace::Activity;
  at_ns = std::max(at_ns, client.since_ns_);
  // A step belongs to the last batch taken, a wait to the one after it.
  const uint64_t sequence = client.activity_ == Activity::kWait ? client.taken_ : client.taken_ - 1;
  const ClientTrace::Published& batch = client.published_[sequence % kMaxSlots];
  const bool known = batch.sequence == sequence && sequence != UINT64_MAX;
  if (at_ns > client.since_ns_ &&
      (client.activity_ == Activity::kWait || (client.activity_ == Activity::kStep && known))) {
    TraceSpan span{.kind = client.activity_ == Activity::kWait ? SpanKind::kWait : SpanKind::kStep,
                   .open = open,
                   .session = pages.session()};
    if (known) {
      span.epoch = batch.epoch;
      span.batch = batch.batch;
      span.samples = batch.samples;
    }
    span.begin_ns = client.since_ns_;
    span.end_ns = at_ns;
    recorder_.Record(span);
  }
  client.activity_ = to;
  client.since_ns_ = at_ns;
  client.woken_ns_ = 0;
  client.quiet_ns_ = 0;
}

}  // namespace pinfeed
