// SPDX-License-Identifier: Apache-2.0
#include "server/order/next_use.h"

#include <optional>
#include <vector>

#include "server/order/sampler.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

FeedSpec Spec(uint32_t batch_size, uint32_t rank, uint32_t world_size, Order order = Order::kShuffle) {
  FeedSpec spec;
  spec.batch_size = batch_size;
  spec.rank = rank;
  spec.world_size = world_size;
  spec.order = order;
  spec.seed = 23;
  return spec;
}

// Where the sampler itself comes to each sample, by going through two epochs from `now` on. The samples that
// a last batch repeats do not count.
std::vector<std::optional<uint64_t>> Walked(const FeedSpec& spec, uint64_t samples, uint64_t epoch,
                                            uint64_t batch) {
  const auto sampler = Sampler::Create(spec, samples);
  const uint64_t now = sampler->Plan(epoch, batch).next_position;
  std::vector<std::optional<uint64_t>> uses(samples);
  for (uint64_t e = epoch; e < epoch + 2 && (spec.epochs == 0 || e < spec.epochs); ++e) {
    for (uint64_t b = e == epoch ? batch + 1 : 0; b < sampler->batches_per_epoch(); ++b) {
      const BatchPlan plan = sampler->Plan(e, b);
      const BatchSamples ids = sampler->SamplesOf(plan);
      for (uint32_t i = 0; i < plan.samples; ++i) {
        const uint64_t position = b * sampler->global_batch() + spec.rank * plan.samples + i;
        if (position < samples && !uses[ids[i]]) uses[ids[i]] = (e - epoch) * samples + position - now;
      }
    }
  }
  return uses;
}

void ExpectAsWalked(const FeedSpec& spec, uint64_t samples, uint64_t epoch, uint64_t batch) {
  const NextUse next(spec, samples);
  const uint64_t now = Sampler::Create(spec, samples)->Plan(epoch, batch).next_position;
  const auto walked = Walked(spec, samples, epoch, batch);
  for (uint64_t sample = 0; sample < samples; ++sample) {
    const std::optional<uint64_t> after = next.After({epoch, now}, sample);
    if (walked[sample] || (spec.epochs != 0 && epoch + 1 >= spec.epochs)) {
      ASSERT_EQ(after, walked[sample]) << "sample " << sample;
    } else {
      ASSERT_EQ(after, 2 * samples - now) << "sample " << sample;  // behind the next epoch
    }
  }
}

TEST(NextUseTest, IsWhereTheSamplerComesToTheSample) {
  for (const uint64_t samples : {64, 65, 100, 1000}) {
    for (const uint64_t batch : {0, 1, 5}) {
      ExpectAsWalked(Spec(8, 0, 1), samples, 3, batch);
      ExpectAsWalked(Spec(8, 0, 1, Order::kSequential), samples, 3, batch);
    }
  }
  ExpectAsWalked(Spec(4096, 0, 1), Permutation::kMaxListed + 1000, 2, 3);
}

TEST(NextUseTest, OnlyPositionsOfTheRankCount) {
  for (uint32_t rank = 0; rank < 4; ++rank) {
    FeedSpec spec = Spec(8, rank, 4);
    ExpectAsWalked(spec, 1000, 3, 7);
    spec.drop_last = true;
    ExpectAsWalked(spec, 1000, 3, 7);
  }
}

TEST(NextUseTest, ThereIsNoneAfterTheLastEpoch) {
  FeedSpec spec = Spec(8, 0, 1);
  spec.epochs = 4;
  ExpectAsWalked(spec, 100, 2, 5);
  ExpectAsWalked(spec, 100, 3, 5);
  const NextUse next(spec, 100);
  for (uint64_t sample = 0; sample < 100; ++sample) EXPECT_EQ(next.After({3, 100}, sample), std::nullopt);
}

}  // namespace
}  // namespace pinfeed
