// SPDX-License-Identifier: Apache-2.0
#include "server/order/sampler.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

FeedSpec Spec(uint32_t batch_size, uint32_t rank, uint32_t world_size, bool drop_last,
              Order order = Order::kShuffle) {
  FeedSpec spec;
  spec.batch_size = batch_size;
  spec.rank = rank;
  spec.world_size = world_size;
  spec.drop_last = drop_last;
  spec.order = order;
  spec.seed = 17;
  return spec;
}

std::vector<uint64_t> Ids(const Sampler& sampler, uint64_t epoch, uint64_t batch) {
  const BatchPlan plan = sampler.Plan(epoch, batch);
  std::vector<uint64_t> ids;
  const BatchSamples samples = sampler.SamplesOf(plan);
  for (uint32_t i = 0; i < plan.samples; ++i) ids.push_back(samples[i]);
  return ids;
}

// The ids of one global batch: the ranks' blocks one behind the other.
std::vector<uint64_t> GlobalIds(uint32_t global_batch, uint32_t world_size, uint64_t samples, uint64_t epoch,
                                uint64_t batch, bool drop_last) {
  std::vector<uint64_t> ids;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    const auto sampler =
        Sampler::Create(Spec(global_batch / world_size, rank, world_size, drop_last), samples);
    const std::vector<uint64_t> block = Ids(*sampler, epoch, batch);
    ids.insert(ids.end(), block.begin(), block.end());
  }
  return ids;
}

TEST(SamplerTest, EpochOfOneRankVisitsEverySampleOnce) {
  for (const uint64_t samples : {1, 7, 64, 65, 1000}) {
    const auto sampler = Sampler::Create(Spec(8, 0, 1, false), samples);
    ASSERT_TRUE(sampler.ok());
    std::vector<uint64_t> seen;
    for (uint64_t b = 0; b < sampler->batches_per_epoch(); ++b) {
      const std::vector<uint64_t> ids = Ids(*sampler, 3, b);
      seen.insert(seen.end(), ids.begin(), ids.end());
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), samples);
    for (uint64_t i = 0; i < samples; ++i) EXPECT_EQ(seen[i], i);
  }
}

TEST(SamplerTest, ManyIdsAtOnceAreThoseOneByOne) {
  for (const uint64_t samples : {1, 7, 1000, 70'001}) {
    for (const Order order : {Order::kSequential, Order::kShuffle}) {
      for (const uint32_t rank : {0, 3}) {  // the last one's batches go on at the epoch's start
        const auto sampler = Sampler::Create(Spec(9, rank, 4, false, order), samples);
        for (const uint64_t batch : {uint64_t{0}, sampler->batches_per_epoch() - 1}) {
          const BatchPlan plan = sampler->Plan(2, batch);
          const std::vector<uint64_t> expected = Ids(*sampler, 2, batch);
          for (uint32_t first = 0; first <= plan.samples; ++first) {
            std::vector<uint32_t> ids(plan.samples - first);
            sampler->SamplesOf(plan).CopyTo(first, ids);
            EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected.begin() + first, expected.end()));
          }
        }
      }
    }
  }
}

TEST(SamplerTest, GlobalBatchIsTheSameForEveryWorldSize) {
  constexpr uint64_t kSamples = 1003;
  for (uint64_t batch = 0; batch < kSamples / 24; ++batch) {
    const std::vector<uint64_t> one = GlobalIds(24, 1, kSamples, 2, batch, true);
    for (const uint32_t world : {2, 3, 4, 6, 8, 12, 24})
      EXPECT_EQ(GlobalIds(24, world, kSamples, 2, batch, true), one);
  }
}

TEST(SamplerTest, RanksAreDisjointWithinWholeBatches) {
  std::vector<uint64_t> seen;
  for (uint64_t batch = 0; batch < 10; ++batch) {
    const std::vector<uint64_t> ids = GlobalIds(16, 4, 160, 0, batch, true);
    seen.insert(seen.end(), ids.begin(), ids.end());
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  EXPECT_EQ(seen.size(), 160U);
}

// Every rank must do the same number of steps of the same size, else collectives hang; and no sample may be
// left out.
TEST(SamplerTest, IncompleteLastBatchIsEvenOverRanksAndCoversTheRest) {
  for (const uint64_t samples : {161, 163, 167, 175}) {
    std::vector<uint64_t> tail = GlobalIds(16, 4, samples, 1, 10, false);
    const uint64_t rest = samples - 160;
    EXPECT_EQ(tail.size(), (rest + 3) / 4 * 4);
    std::vector<uint64_t> seen = tail;
    for (uint64_t batch = 0; batch < 10; ++batch) {
      const std::vector<uint64_t> ids = GlobalIds(16, 4, samples, 1, batch, false);
      seen.insert(seen.end(), ids.begin(), ids.end());
    }
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    EXPECT_EQ(seen.size(), samples);
  }
}

TEST(SamplerTest, DropLastLeavesTheIncompleteBatchOut) {
  EXPECT_EQ(Sampler::Create(Spec(10, 0, 1, true), 99)->batches_per_epoch(), 9U);
  EXPECT_EQ(Sampler::Create(Spec(10, 0, 1, false), 99)->batches_per_epoch(), 10U);
  EXPECT_EQ(Sampler::Create(Spec(10, 0, 1, false), 99)->Plan(0, 9).samples, 9U);
  EXPECT_TRUE(Sampler::Create(Spec(10, 0, 1, false), 99)->Plan(0, 9).last_of_epoch);
}

TEST(SamplerTest, SequentialOrderIsTheDatasets) {
  const auto sampler = Sampler::Create(Spec(4, 0, 1, false, Order::kSequential), 10);
  EXPECT_EQ(Ids(*sampler, 5, 1), (std::vector<uint64_t>{4, 5, 6, 7}));
  EXPECT_EQ(Ids(*sampler, 5, 2), (std::vector<uint64_t>{8, 9}));
}

TEST(SamplerTest, ResumeIsTheInverseOfPlan) {
  const auto sampler = Sampler::Create(Spec(8, 1, 2, false), 100);
  for (uint64_t b = 0; b < sampler->batches_per_epoch(); ++b) {
    const BatchPlan plan = sampler->Plan(4, b);
    const Cursor cursor{.seed = 17, .epoch = 4, .position = plan.next_position};
    const auto start = sampler->Resume(cursor);
    ASSERT_TRUE(start.ok()) << start.status().ToString();
    EXPECT_EQ(start->epoch, plan.last_of_epoch ? 5U : 4U);
    EXPECT_EQ(start->batch_index, plan.last_of_epoch ? 0U : b + 1);
  }
}

TEST(SamplerTest, ResumeWithAnotherWorldSizeOfTheSameGlobalBatchGoesOnExactly) {
  const auto before = Sampler::Create(Spec(6, 0, 4, true), 1000);
  const auto after = Sampler::Create(Spec(12, 0, 2, true), 1000);
  const Cursor cursor{.seed = 17, .position = before->Plan(0, 6).next_position};
  EXPECT_EQ(after->Resume(cursor)->batch_index, 7U);
}

TEST(SamplerTest, ResumeRefusesWhatIsNoBatchBorder) {
  const auto sampler = Sampler::Create(Spec(8, 0, 2, false), 100);
  Cursor cursor{.seed = 17, .position = 8};
  EXPECT_THAT(sampler->Resume(cursor), StatusIs(Code::kInvalidArgument, HasSubstr("position 8")));
  cursor.position = 112;
  EXPECT_THAT(sampler->Resume(cursor), StatusIs(Code::kOk));  // the end of the epoch, were it whole
  cursor.position = 128;
  EXPECT_THAT(sampler->Resume(cursor), StatusIs(Code::kInvalidArgument));
  cursor.position = 0;
  cursor.seed = 18;
  EXPECT_THAT(sampler->Resume(cursor), StatusIs(Code::kInvalidArgument, HasSubstr("seed 18")));
}

TEST(SamplerTest, ResumeNeverWrapsToTheFirstEpoch) {
  const auto sampler = Sampler::Create(Spec(8, 0, 1, false, Order::kSequential), 16);
  Cursor cursor;
  for (const uint64_t position : {0U, 8U, 16U}) {
    cursor.position = position;
    for (const uint64_t epoch : {UINT64_MAX, UINT64_MAX - 1, kMaxEpoch + 1}) {
      cursor.epoch = epoch;
      EXPECT_THAT(sampler->Resume(cursor), StatusIs(Code::kInvalidArgument, HasSubstr("cursor.epoch")));
    }
  }
  cursor.epoch = kMaxEpoch;
  ASSERT_OK_AND_ASSIGN(const Sampler::Start start, sampler->Resume(cursor));
  EXPECT_EQ(start.epoch, kMaxEpoch + 1);
}

TEST(SamplerTest, ResumeRefusesThePositionOfAnotherOrder) {
  const auto shuffled = Sampler::Create(Spec(8, 0, 2, false), 100);
  const auto sequential = Sampler::Create(Spec(8, 0, 2, false, Order::kSequential), 100);
  Cursor cursor{.seed = 17, .order = Order::kShuffle};
  EXPECT_THAT(shuffled->Resume(cursor), StatusIs(Code::kOk));
  EXPECT_THAT(sequential->Resume(cursor),
              StatusIs(Code::kInvalidArgument, HasSubstr("of a shuffled feed, this one is sequential")));
  cursor.order = Order::kSequential;
  EXPECT_THAT(sequential->Resume(cursor), StatusIs(Code::kOk));
  EXPECT_THAT(shuffled->Resume(cursor),
              StatusIs(Code::kInvalidArgument, HasSubstr("of a sequential feed, this one is shuffled")));
  cursor.seed = 18;  // means nothing to a sequential feed
  EXPECT_THAT(sequential->Resume(cursor), StatusIs(Code::kOk));
  cursor.order.reset();
  EXPECT_THAT(sequential->Resume(cursor), StatusIs(Code::kOk));
}

// Version 1 shuffled otherwise: what it left of an epoch cannot be given any more.
TEST(SamplerTest, ResumeRefusesTheRestOfAnEpochThatAnOlderVersionShuffled) {
  const auto shuffled = Sampler::Create(Spec(8, 0, 2, false), 100);
  const auto sequential = Sampler::Create(Spec(8, 0, 2, false, Order::kSequential), 100);
  Cursor cursor;
  cursor.seed = 17;
  cursor.version = 1;
  cursor.epoch = 4;
  cursor.position = 16;
  EXPECT_THAT(shuffled->Resume(cursor),
              StatusIs(Code::kInvalidArgument,
                       AllOf(HasSubstr("written by an earlier pinfeed "), HasSubstr("set_epoch(4)"))));
  EXPECT_EQ(sequential->Resume(cursor)->batch_index, 1U);
  cursor.position = 0;
  EXPECT_EQ(*shuffled->Resume(cursor), (Sampler::Start{4, 0}));
  cursor.position = 100;
  EXPECT_EQ(*shuffled->Resume(cursor), (Sampler::Start{5, 0}));
  cursor.version = 2;
  cursor.position = 16;
  EXPECT_EQ(*shuffled->Resume(cursor), (Sampler::Start{4, 1}));
}

// Batches of several epochs are loaded at once when the prefetched ones reach over a border, more of them
// than there are orders kept.
TEST(SamplerTest, OrderOfAnEpochIsTheSameOnAllThreadsWhateverOthersAskFor) {
  constexpr uint64_t kSamples = 1000;
  const auto sampler = Sampler::Create(Spec(8, 0, 1, false), kSamples);
  std::vector<std::vector<uint64_t>> expected;
  for (uint64_t epoch = 0; epoch < 4; ++epoch)
    expected.push_back(Ids(*Sampler::Create(Spec(8, 0, 1, false), kSamples), epoch, 3));
  const Sampler copy = *sampler;
  std::vector<std::thread> threads;
  std::atomic<uint32_t> others{0};
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; i < 500; ++i) {
        const uint64_t epoch = (i + thread) % expected.size();
        if (Ids(i % 2 == 0 ? *sampler : copy, epoch, 3) != expected[epoch]) ++others;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(others, 0U);
}

TEST(SamplerTest, RefusesWhatCannotWork) {
  EXPECT_THAT(Sampler::Create(Spec(11, 0, 1, true), 10),
              StatusIs(Code::kInvalidArgument, HasSubstr("drop_last")));
  EXPECT_THAT(Sampler::Create(Spec(1, 0, 1, false), 0),
              StatusIs(Code::kInvalidArgument, HasSubstr("no samples")));
  EXPECT_TRUE(Sampler::Create(Spec(UINT32_MAX, 0, UINT32_MAX, false), 10).ok());  // one short batch
}

}  // namespace
}  // namespace pinfeed
