// SPDX-License-Identifier: Apache-2.0
#include "server/trace/feed_recorder.h"

namespace pinfeed {

void FeedRecorder::Record(TraceSpan span) const {
  span.feed = feed_;
  tracer_->Record(owner_, {&span, 1});
}

void FeedRecorder::Work(const BatchPlan& plan, uint32_t slot, uint32_t samples,
                        std::optional<WorkSpans>& spans) const {
  TraceSpan like;
  like.feed = feed_;
  like.epoch = plan.epoch;
  like.batch = plan.batch_index;
  like.slot = slot;
  like.samples = samples;
  spans.emplace(*tracer_, owner_, like);
}

void FeedRecorder::Copied(uint32_t slot, const BatchPlan& plan, uint32_t samples,
                          const CopyTime& time) const {
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

}  // namespace pinfeed
