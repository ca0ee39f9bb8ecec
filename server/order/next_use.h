// SPDX-License-Identifier: Apache-2.0
// When a feed will use a sample the next time: arithmetic, as its order is.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/sync.h"
#include "common/spec/feed_spec.h"
#include "server/order/permutation.h"

namespace pinfeed {

// Purpose: looks up in which of the coming positions a sample stands. Knows this epoch and the next. Owns:
// the inverse orders of the last requested epochs, at most 256 KiB each. Threads: any. Errors: none.
class NextUse {
 public:
  // A global position in an epoch, as in BatchPlan.
  struct Place {
    uint64_t epoch = 0;
    uint64_t position = 0;
  };

  // Precondition: Sampler::Create accepted the spec for as many samples.
  NextUse(const FeedSpec& spec, uint64_t dataset_samples);

  // The number of positions from `now` on until the feed reads the sample: 0 if it is the next one. Empty: it
  // never will, since its epochs end before. A use that lies behind the next epoch counts as at its end.
  // Samples that a last batch repeats count once. Preconditions: sample < dataset_samples; now.position <=
  // dataset_samples.
  std::optional<uint64_t> After(const Place& now, uint64_t sample) const PF_EXCLUDES(mutex_);

 private:
  uint64_t PositionIn(uint64_t epoch, uint64_t sample) const PF_EXCLUDES(mutex_);
  // Whether this rank reads that position.
  bool IsRead(uint64_t position) const;

  const uint64_t samples_;
  const uint64_t batch_size_;
  const uint64_t world_size_;
  const uint64_t rank_;
  const uint64_t epochs_;  // 0: no end
  const uint64_t seed_;
  const bool drop_last_;
  const bool shuffles_;
  struct RecentOrder {
    uint64_t epoch = 0;
    std::shared_ptr<const Permutation> inverse;
  };
  mutable Mutex mutex_;
  // At the border of two epochs, batches of both are loaded, and three epochs are asked for.
  mutable std::array<RecentOrder, 3> recent_ PF_GUARDED_BY(mutex_);  // by epoch, modulo their number
};

}  // namespace pinfeed
