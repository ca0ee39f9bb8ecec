// SPDX-License-Identifier: Apache-2.0
#include "server/trace/feed_recorder.h"

namespace pinfeed {

void FeedRecorder::Record(TraceSpan span) const {
  span.feed = feed_;
  tracer_->Record(owner_, {&span, 1});
}

void FeedRecorder::Work(const BatchPlan& plan, uint32_t slot, uint32_t samples,
                        std::optional<WorkSpans>& spans) const {
  const TraceSpan like{
      .slot = slot, .samples = samples, .feed = feed_, .epoch = plan.epoch, .batch = plan.batch_index};
  spans.emplace(*tracer_, owner_, like);
}

void FeedRecorder::Copied(uint32_t slot, const BatchPlan& plan, uint32_t samples,
                          const CopyTime& time) const {
  Record({.kind = SpanKind::kCopy,
          .slot = slot,
          .thread = ThreadNumber(),
          .samples = samples,
          .epoch = plan.epoch,
          .batch = plan.batch_index,
          .begin_ns = time.begin_ns,
          .end_ns = time.end_ns});
}

}  // namespace pinfeed
