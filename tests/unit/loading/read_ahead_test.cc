// SPDX-License-Identifier: Apache-2.0
#include "server/loading/read_ahead.h"

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "tests/support/testing.h"
#include "tests/unit/feed/number_dataset.h"

namespace pinfeed {
namespace {

// Records what is asked for ahead.
class AskedDataset final : public NumberDataset {
 public:
  explicit AskedDataset(uint64_t samples) : NumberDataset(samples) {}

  uint64_t sample_bytes = ReadAhead::kWindowBytes / 16;
  std::function<void()> before_prefetch;
  std::atomic<bool> cached{false};

  Prefetched Prefetch(uint64_t id, uint64_t count, size_t /*field*/) const override {
    if (before_prefetch) before_prefetch();
    const MutexLock lock(mutex_);
    for (uint64_t i = 0; i < count; ++i) asked_.push_back(id + i);
    ++calls_;
    return {count * sample_bytes, cached};
  }

  std::vector<uint64_t> asked() const {
    const MutexLock lock(mutex_);
    return asked_;
  }
  size_t calls() const {
    const MutexLock lock(mutex_);
    return calls_;
  }

 private:
  mutable Mutex mutex_;
  mutable std::vector<uint64_t> asked_ PF_GUARDED_BY(mutex_);
  mutable size_t calls_ PF_GUARDED_BY(mutex_) = 0;
};

// One reader, so that the order of what it asks for is that of the feed.
class ReadAheadTest : public ::testing::Test {
 protected:
  ~ReadAheadTest() override { readers_.Stop(); }

  void Make(std::shared_ptr<AskedDataset> dataset, Order order, uint64_t epochs) {
    dataset_ = std::move(dataset);
    const FeedSpec spec{.batch_size = kBatch, .order = order, .seed = 3, .epochs = epochs};
    sampler_.emplace(Sampler::Create(spec, dataset_->info().samples).value());
    std::shared_ptr<const SampleLoader> loader = SampleLoader::Create(dataset_, spec).value();
    ahead_ = std::make_shared<ReadAhead>(std::move(loader), *sampler_, epochs, readers_);
  }
  uint64_t Add(uint64_t epoch, uint64_t batch, uint32_t begin = 0) {
    return ahead_->Add(sampler_->Plan(epoch, batch), begin, share_);
  }
  // A worker began with the sample, and its read was slow.
  void SwitchOn(uint64_t place = 0, uint64_t read_ns = ReadAhead::kSlowReadNs) {
    ahead_->Begin(place);
    ahead_->Took(place, read_ns);
  }
  // A worker reads so many samples more of the first epoch from the page cache, and the reader keeps up.
  void ReadOn(uint64_t count, uint64_t read_ns = ReadAhead::kSlowReadNs) {
    for (const uint64_t end = place_ + count; place_ < end; ++place_) {
      if (place_ % kBatch == 0) Add(0, place_ / kBatch);
      SwitchOn(place_, read_ns);
      AwaitReader();
    }
  }
  // The ids of `count` samples from one on, in the feed's order.
  std::vector<uint64_t> Ids(uint64_t epoch, uint64_t batch, uint32_t index, size_t count) const {
    std::vector<uint64_t> ids;
    while (ids.size() < count) {
      const BatchPlan plan = sampler_->Plan(epoch, batch);
      const BatchSamples samples = sampler_->SamplesOf(plan);
      for (; index < plan.samples && ids.size() < count; ++index) ids.push_back(samples[index]);
      index = 0;
      batch = plan.last_of_epoch ? 0 : batch + 1;
      epoch += plan.last_of_epoch ? 1 : 0;
    }
    return ids;
  }
  // Everything that was submitted so far is done.
  void AwaitReader() const {
    while (ahead_.use_count() > 1) std::this_thread::yield();
  }

  static constexpr uint32_t kBatch = 5;
  static constexpr uint64_t kWindow = 16;  // of samples of the size that AskedDataset has
  const FeedShare share_{1000, 7};
  WorkerPool readers_{1, UINT32_MAX, PoolKind::kReaders};
  std::shared_ptr<AskedDataset> dataset_;
  std::optional<Sampler> sampler_;
  std::shared_ptr<ReadAhead> ahead_;
  uint64_t place_ = 0;  // see ReadOn
};

TEST_F(ReadAheadTest, AsksForNothingWhileReadsAreFast) {
  Make(std::make_shared<AskedDataset>(1000), Order::kShuffle, 0);
  readers_.Start();
  for (uint64_t batch = 0; batch < 50; ++batch) {
    const uint64_t first = Add(0, batch);
    for (uint32_t i = 0; i < kBatch; ++i) {
      ahead_->Begin(first + i);
      ahead_->Took(first + i, ReadAhead::kSlowReadNs - 1);
    }
  }
  AwaitReader();
  EXPECT_EQ(dataset_->calls(), 0U);
  EXPECT_EQ(ahead_->use().starts, 0U);
}

TEST_F(ReadAheadTest, CountsWhatThePageCacheLacked) {
  Make(std::make_shared<AskedDataset>(23), Order::kShuffle, 1);
  Add(0, 0);
  SwitchOn();
  ahead_->Took(1, ReadAhead::kSlowReadNs);
  AwaitReader();
  EXPECT_TRUE(ahead_->use().on);
  EXPECT_EQ(ahead_->use().starts, 1U);
  EXPECT_EQ(ahead_->use().samples, kWindow);
  EXPECT_EQ(ahead_->use().bytes, kWindow * dataset_->sample_bytes);
  dataset_->cached = true;
  ahead_->Begin(22);
  AwaitReader();
  EXPECT_EQ(ahead_->use().samples, kWindow);
  ahead_->Stop();
  EXPECT_FALSE(ahead_->use().on);
}

TEST_F(ReadAheadTest, FollowsTheOrderBehindTheWorkersAsFarAsItMay) {
  Make(std::make_shared<AskedDataset>(23), Order::kShuffle, 0);
  // The feed has asked for one batch only. What follows is known all the same, over two ends of epochs.
  EXPECT_EQ(Add(0, 3), 0U);
  SwitchOn();
  AwaitReader();
  EXPECT_EQ(dataset_->asked(), Ids(0, 3, 1, kWindow));
  EXPECT_EQ(Add(0, 4), 5U);
  EXPECT_EQ(Add(1, 0), 8U);
  EXPECT_EQ(Add(1, 1), 13U);
  EXPECT_EQ(Add(1, 2), 18U);
  ahead_->Begin(16);
  AwaitReader();
  EXPECT_EQ(dataset_->asked(), Ids(0, 3, 1, 2 * kWindow));
}

TEST_F(ReadAheadTest, PiecesOfABatchHaveTheirPlacesInIt) {
  Make(std::make_shared<AskedDataset>(1000), Order::kShuffle, 0);
  EXPECT_EQ(Add(0, 0), 0U);
  EXPECT_EQ(Add(0, 0, 2), 2U);
  EXPECT_EQ(Add(0, 1), 5U);
  EXPECT_EQ(Add(0, 1, 4), 9U);
}

TEST_F(ReadAheadTest, PiecesBeyondTheWindowChangeNothing) {
  Make(std::make_shared<AskedDataset>(1000), Order::kShuffle, 0);
  Add(0, 0);
  SwitchOn();
  AwaitReader();
  // Two threads add them.
  EXPECT_EQ(Add(0, 30), 150U);
  EXPECT_EQ(Add(0, 1), 5U);
  ahead_->Begin(5);
  AwaitReader();
  EXPECT_EQ(dataset_->asked(), Ids(0, 0, 1, kWindow + 5));
}

// Workers that are faster than the readers: what these have not come to does not pile up.
class FastWorkersTest : public ReadAheadTest, public ::testing::WithParamInterface<bool> {};
TEST_P(FastWorkersTest, RequestsUnderWayAreBounded) {
  std::latch reached(1);
  std::latch go(1);
  auto dataset = std::make_shared<AskedDataset>(1'000'000);
  dataset->cached = GetParam();
  dataset->before_prefetch = [&, first = std::make_shared<std::atomic<bool>>(true)] {
    if (first->exchange(false)) reached.count_down();
    go.wait();
  };
  Make(std::move(dataset), Order::kShuffle, 0);
  SwitchOn(Add(0, 0));
  reached.wait();
  uint64_t place = 0;
  for (uint64_t batch = 1; batch < 2000; ++batch) {
    place = Add(0, batch);
    for (uint32_t i = 0; i < kBatch; ++i) ahead_->Begin(place + i);
    ASSERT_LE(ahead_.use_count(), 1 + ReadAhead::kMaxTasks);
  }
  go.count_down();
  AwaitReader();
  EXPECT_EQ(ahead_->use().on, !dataset_->cached) << "what the workers were at first needed no reader";
  if (dataset_->cached) return;
  // It goes on where the workers are.
  ahead_->Begin(place + kBatch - 1);
  AwaitReader();
  const std::vector<uint64_t> asked = dataset_->asked();
  ASSERT_GE(asked.size(), kWindow);
  EXPECT_EQ(std::vector(asked.end() - kWindow, asked.end()), Ids(0, 2000, 0, kWindow));
}
INSTANTIATE_TEST_SUITE_P(ReadAheadTest, FastWorkersTest, ::testing::Bool());

TEST_F(ReadAheadTest, EndsWithTheLastEpoch) {
  Make(std::make_shared<AskedDataset>(12), Order::kShuffle, 1);
  Add(0, 0);
  SwitchOn();
  AwaitReader();
  EXPECT_EQ(dataset_->asked(), Ids(0, 0, 1, 11));
}

TEST_F(ReadAheadTest, GoesWhereTheFeedGoes) {
  Make(std::make_shared<AskedDataset>(1000), Order::kShuffle, 0);
  Add(0, 0);
  SwitchOn();
  AwaitReader();
  const uint64_t place = Add(5, 7);
  AwaitReader();
  const std::vector<uint64_t> asked = dataset_->asked();
  ASSERT_EQ(asked.size(), 2 * kWindow);
  EXPECT_EQ(std::vector(asked.begin() + kWindow, asked.end()), Ids(5, 7, 0, kWindow));
  // Back to where it was.
  ahead_->Begin(place + 1);
  EXPECT_GT(Add(0, 1), place);
  AwaitReader();
  const std::vector<uint64_t> then = dataset_->asked();
  EXPECT_EQ(std::vector(then.end() - kWindow, then.end()), Ids(0, 1, 0, kWindow));
}

TEST_F(ReadAheadTest, NeighboursAreAskedForTogether) {
  auto dataset = std::make_shared<AskedDataset>(100'000);
  dataset->sample_bytes = 1000;
  Make(std::move(dataset), Order::kSequential, 1);
  for (uint64_t batch = 0; batch < 400; ++batch) Add(0, batch);
  SwitchOn();
  AwaitReader();
  // The window grows with what the workers have done.
  ahead_->Begin(kWindow);
  AwaitReader();
  const size_t first = ReadAhead::kFalseAlarmRun + 3 * kWindow;
  EXPECT_EQ(dataset_->asked().size(), first);
  ahead_->Begin(3000);
  AwaitReader();
  const std::vector<uint64_t> asked = dataset_->asked();
  EXPECT_EQ(asked.size(), first + ReadAhead::kMaxWindow);
  for (size_t i = 0; i < asked.size(); ++i) ASSERT_EQ(asked[i], i < first ? i + 1 : 3001 + i - first);
  EXPECT_LE(dataset_->calls(), asked.size() / 30);
}

TEST_F(ReadAheadTest, IsOffWhileThePageCacheHasAllAndOnAgainAfterwards) {
  auto dataset = std::make_shared<AskedDataset>(1'000'000);
  dataset->cached = true;
  Make(std::move(dataset), Order::kShuffle, 1);
  ReadOn(100);
  const size_t first = dataset_->asked().size();
  EXPECT_GE(first, ReadAhead::kFalseAlarmRun);
  EXPECT_LE(first, ReadAhead::kFalseAlarmRun + 1);
  // Off for a while, then a shorter part of what follows is looked at.
  ReadOn(4900);
  EXPECT_LE(dataset_->asked().size(), 5 * (ReadAhead::kFalseAlarmRun + 1));
  // The cache has lost the data.
  dataset_->cached = false;
  ReadOn(15'000);
  const size_t lost = dataset_->asked().size();
  ReadOn(1000);
  EXPECT_GE(dataset_->asked().size(), lost + 1000);
  EXPECT_GT(ahead_->use().starts, 3U);
}

TEST_F(ReadAheadTest, ReadThatSurelyWaitedForADiskEndsTheQuiet) {
  auto dataset = std::make_shared<AskedDataset>(1'000'000);
  dataset->cached = true;
  Make(std::move(dataset), Order::kShuffle, 1);
  ReadOn(100);
  const uint64_t starts = ahead_->use().starts;
  EXPECT_EQ(starts, 1U);
  EXPECT_FALSE(ahead_->use().on);
  ReadOn(1, ReadAhead::kSurelySlowReadNs - 1);
  EXPECT_EQ(ahead_->use().starts, starts);
  ReadOn(1, ReadAhead::kSurelySlowReadNs);
  EXPECT_EQ(ahead_->use().starts, starts + 1);
}

TEST_F(ReadAheadTest, AsksForNothingOnceItIsStopped) {
  std::latch reached(1);
  std::latch go(1);
  auto dataset = std::make_shared<AskedDataset>(1000);
  dataset->before_prefetch = [&] {
    reached.count_down();
    go.wait();
  };
  Make(std::move(dataset), Order::kShuffle, 0);
  Add(0, 0);
  SwitchOn();
  reached.wait();
  ahead_->Stop();
  go.count_down();
  Add(0, 1);
  SwitchOn(5);
  AwaitReader();
  EXPECT_EQ(dataset_->calls(), 1U);
}

}  // namespace
}  // namespace pinfeed
