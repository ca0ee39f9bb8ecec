// SPDX-License-Identifier: Apache-2.0
// Decides which batch a feed plans next. In: the starts of its sessions. Out: plans, in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/spec/feed_spec.h"
#include "server/order/sampler.h"

namespace pinfeed {

// Purpose: iterates over the epochs of a feed batch by batch. Borrows: the sampler (outlives it). Threads:
// one at a time. Errors: none.
class BatchPlanner {
 public:
  using Start = Sampler::Start;

  // `epochs` is the number of epochs; 0: as many as a cursor can represent.
  BatchPlanner(const Sampler& sampler, uint64_t epochs) : sampler_(sampler), epochs_(epochs) {}

  // The batch that Plan returns next, unless Done.
  Start next() const { return next_; }
  bool Done() const { return next_.epoch > kMaxEpoch || (epochs_ != 0 && next_.epoch >= epochs_); }

  // Precondition: nothing is planned yet.
  void Begin(Start start) { first_ = next_ = start; }
  // Skips the batches before `start`. Does nothing if the planner is past it.
  void SkipTo(Start start) { next_ = std::max(next_, start); }
  // Plans the batches from `start` to the earliest batch planned so far, then continues from here. Does
  // nothing unless `start` is earlier than that batch.
  void GoBackTo(Start start);
  // Precondition: !Done().
  BatchPlan Plan();

 private:
  // A return to earlier batches. At `end` the planner continues at `resume`.
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
