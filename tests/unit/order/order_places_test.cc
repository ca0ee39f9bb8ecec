// SPDX-License-Identifier: Apache-2.0
#include "server/order/order_places.h"

#include <optional>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

// From any place on, the samples come as the sampler has them, over the ends of epochs.
TEST(OrderPlacesTest, AreThoseOfTheSampler) {
  for (const uint32_t world_size : {1U, 3U}) {
    FeedSpec spec;
    spec.batch_size = 4;
    spec.world_size = world_size;
    spec.rank = world_size - 1;
    spec.order = Order::kShuffle;
    spec.seed = 9;
    spec.epochs = 8;
    const Sampler sampler = Sampler::Create(spec, 29).value();
    OrderPlaces places(sampler, spec);
    std::optional<uint64_t> next;
    for (uint64_t epoch = 5; epoch < spec.epochs; ++epoch) {
      for (uint64_t batch = 0; batch < sampler.batches_per_epoch(); ++batch) {
        const BatchPlan plan = sampler.Plan(epoch, batch);
        for (uint32_t i = 0; i < plan.samples; ++i) {
          const uint64_t place = places.Of(plan, i);
          const auto sample = places.From(next.value_or(place));
          ASSERT_TRUE(sample);
          EXPECT_EQ(sample->place, place);
          EXPECT_EQ(sample->id, sampler.SamplesOf(plan)[i]);
          next = place + 1;
        }
      }
    }
    EXPECT_FALSE(places.From(*next)) << "the epochs have ended";
    EXPECT_EQ(places.Of(sampler.Plan(4, 1), 2), 0U) << "before the first";
    EXPECT_GE(places.Of(sampler.Plan(6, 0), 0), places.epoch());
  }
}

TEST(OrderPlacesTest, EndWithTheLastPossibleEpoch) {
  const FeedSpec spec{.batch_size = 4, .order = Order::kSequential};
  const Sampler sampler = Sampler::Create(spec, 6).value();
  OrderPlaces places(sampler, spec);
  const uint64_t last = places.Of(sampler.Plan(kMaxEpoch, 1), 1);
  EXPECT_EQ(places.From(last)->id, 5U);
  EXPECT_FALSE(places.From(last + 1));
}

}  // namespace
}  // namespace pinfeed
