// SPDX-License-Identifier: Apache-2.0
// Records spans of one feed. In: what its threads do. Out: spans for the tracer.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "server/memory/arena.h"
#include "server/order/sampler.h"
#include "server/trace/tracer.h"

namespace pinfeed {

// Purpose: labels spans with their feed and its user. Owns nothing. Borrows: the tracer, which outlives it;
// with null, nothing is recorded. Threads: any; it is immutable. Errors: none.
class FeedRecorder {
 public:
  FeedRecorder(Tracer* tracer, uid_t owner, uint64_t feed) : tracer_(tracer), owner_(owner), feed_(feed) {}

  // Whether spans of this feed are wanted now. One relaxed load.
  bool On() const { return tracer_ != nullptr && tracer_->Wants(owner_); }
  // Precondition of the following: On() was true once.
  uint64_t run() const { return tracer_->run(); }
  void Record(TraceSpan span) const;
  void Work(const BatchPlan& plan, uint32_t slot, uint32_t samples, std::optional<WorkSpans>& spans) const;
  // Called on the copy thread.
  void Copied(uint32_t slot, const BatchPlan& plan, uint32_t samples, const CopyTime& time) const;

 private:
  Tracer* const tracer_;
  const uid_t owner_;
  const uint64_t feed_;
};

}  // namespace pinfeed
