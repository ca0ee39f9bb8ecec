// SPDX-License-Identifier: Apache-2.0
// When a feed will use a sample the next time: arithmetic, as its order is.
#pragma once

#include <cstdint>
#include <optional>

#include "common/spec/feed_spec.h"
#include "server/order/sampler.h"

namespace pinfeed {

// Purpose: looks up in which of the coming positions a sample stands. Knows this epoch and the next.
// Threads: any. Errors: none.
class NextUse {
 public:
  // A global position in an epoch, as in BatchPlan.
  struct Place {
    uint64_t epoch = 0;
    uint64_t position = 0;
  };

  // Precondition: Sampler::Create accepts the spec for as many samples.
  NextUse(const FeedSpec& spec, uint64_t dataset_samples);

  // The number of positions from `now` on until the feed reads the sample: 0 if it is the next one. Empty: it
  // never will, since its epochs end before. A use that lies behind the next epoch counts as at its end.
  // Samples that a last batch repeats count once. Preconditions: sample < dataset_samples; now.position <=
  // dataset_samples.
  std::optional<uint64_t> After(const Place& now, uint64_t sample) const;

 private:
  const Sampler sampler_;
  const uint64_t epochs_;  // 0: no end
};

}  // namespace pinfeed
