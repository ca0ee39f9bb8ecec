// SPDX-License-Identifier: Apache-2.0
// Which batch a feed plans next. In: where its sessions want to start. Out: plans, in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/spec/feed_spec.h"
#include "server/order/sampler.h"

namespace pinfeed {

// Purpose: walks through the epochs of a feed batch by batch. Borrows: the sampler (outlives it). Threads:
// one at a time. Errors: none.
class BatchPlanner {
 public:
  using Start = Sampler::Start;

  // `epochs`: how many there are; 0: as many as a cursor can name.
  BatchPlanner(const Sampler& sampler, uint64_t epochs) : sampler_(sampler), epochs_(epochs) {}

  // The batch that Plan gives next, unless Done.
  Start next() const { return next_; }
  bool Done() const { return next_.epoch > kMaxEpoch || (epochs_ != 0 && next_.epoch >= epochs_); }

  // Precondition: nothing is planned yet.
  void Begin(Start start) { first_ = next_ = start; }
  // Leaves out what lies before `start`; does nothing if that was planned already.
  void SkipTo(Start start) { next_ = std::max(next_, start); }
  // Plans what lies between `start` and the earliest batch ever planned, then goes on from here. Does nothing
  // unless `start` is earlier than that batch.
  void GoBackTo(Start start);
  // Precondition: !Done().
  BatchPlan Plan();

 private:
  // A way back to earlier batches: at `end` the planner goes on at `resume`.
  struct Detour {
    Start end;
    Start resume;
  };

  const Sampler& sampler_;
  const uint64_t epochs_;
  Start next_{};
  Start first_{};                // the earliest batch ever planned
  std::vector<Detour> detours_;  // the last one ends first
};

}  // namespace pinfeed
