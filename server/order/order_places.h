// SPDX-License-Identifier: Apache-2.0
// A feed's order as one line of places. In: a place. Out: the sample that stands there.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "common/spec/feed_spec.h"
#include "server/order/sampler.h"

namespace pinfeed {

// Purpose: numbers what a feed loads, from the first epoch that it is asked for, so that two places can be
// compared. A short last batch leaves places empty. Threads: any. Errors: none.
class OrderPlaces {
 public:
  // `sampler`: of this spec.
  OrderPlaces(Sampler sampler, const FeedSpec& spec);

  // Precondition: index < plan.samples. Epochs before the first one have no places: 0.
  uint64_t Of(const BatchPlan& plan, uint32_t index);
  // The first sample at `place` or behind it. Empty: the feed's epochs end before. Precondition: Of was
  // called.
  struct Sample {
    uint64_t place = 0;
    uint64_t id = 0;
  };
  std::optional<Sample> From(uint64_t place) const;
  // No smaller number of places in a row holds a whole epoch.
  uint64_t epoch() const { return sampler_.batches_per_epoch() * batch_size_; }

 private:
  static constexpr uint64_t kUnknown = UINT64_MAX;

  const Sampler sampler_;
  const uint64_t batch_size_;
  const uint64_t epochs_;  // 0: no end
  std::atomic<uint64_t> first_epoch_{kUnknown};
};

}  // namespace pinfeed
