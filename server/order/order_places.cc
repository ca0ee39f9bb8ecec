// SPDX-License-Identifier: Apache-2.0
#include "server/order/order_places.h"

#include <utility>

namespace pinfeed {

OrderPlaces::OrderPlaces(Sampler sampler, const FeedSpec& spec)
    : sampler_(std::move(sampler)), batch_size_(spec.batch_size), epochs_(spec.epochs) {}

uint64_t OrderPlaces::Of(const BatchPlan& plan, uint32_t index) {
  uint64_t first = first_epoch_.load(std::memory_order_relaxed);
  if (first == kUnknown && first_epoch_.compare_exchange_strong(first, plan.epoch)) first = plan.epoch;
  if (plan.epoch < first) return 0;
  return (plan.epoch - first) * epoch() + plan.batch_index * batch_size_ + index;
}

std::optional<OrderPlaces::Sample> OrderPlaces::From(uint64_t place) const {
  for (;;) {
    const uint64_t number = first_epoch_.load(std::memory_order_relaxed) + place / epoch();
    if (number > kMaxEpoch || (epochs_ != 0 && number >= epochs_)) return std::nullopt;
    const BatchPlan plan = sampler_.Plan(number, place % epoch() / batch_size_);
    const uint64_t index = place % batch_size_;
    if (index < plan.samples) return Sample{place, sampler_.SamplesOf(plan)[static_cast<uint32_t>(index)]};
    place += batch_size_ - index;
  }
}

}  // namespace pinfeed
