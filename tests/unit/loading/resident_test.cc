// SPDX-License-Identifier: Apache-2.0
// Resident samples, over memory of the host: how they are loaded, shared and freed.
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "server/loading/native_batch_producer.h"
#include "server/loading/resident_batch_producer.h"
#include "server/loading/resident_table.h"
#include "server/memory/host_arena.h"
#include "tests/support/testing.h"
#include "tests/unit/feed/number_dataset.h"

namespace pinfeed {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kSamples = 40;
constexpr char kGpu[] = "GPU-1";
constexpr std::chrono::hours kLong(1);

// ---- Loading ----

// Purpose: takes requests and leaves them to the test.
class HeldLoader final : public BatchProducer {
 public:
  void Produce(std::shared_ptr<PieceRequest> request) override { held.push_back(std::move(request)); }
  ProducerTimes times() const override { return {}; }
  const DatasetInfo& dataset() const override { return info_; }
  std::string Describe(uint64_t sample) const override { return std::to_string(sample); }
  const std::optional<DeferredPixelOps>& deferred_pixel_ops() const override { return none_; }
  std::vector<std::shared_ptr<PieceRequest>> held;

 private:
  const DatasetInfo info_{};
  const std::optional<DeferredPixelOps> none_;
};

class ResidentTest : public ::testing::Test {
 protected:
  ResidentTest() {
    (void)spdlog::default_logger();  // made here: the thread sanitizer does not see how that library
                                     // synchronises
    workers_.Start();
  }
  ~ResidentTest() override { workers_.Stop(); }

  // `held`: gets a loader that leaves its requests to the test; null: workers load.
  std::shared_ptr<ResidentData> MakeData(const std::shared_ptr<const Dataset>& dataset,
                                         HeldLoader** held = nullptr) {
    FeedSpec spec;
    spec.batch_size = 8;
    ResidentPlan plan = PlanResident(spec, *dataset).value();
    auto loader = SampleLoader::Create(dataset, plan.load).value();
    const BatchLayout layout = BatchLayout::Create(loader->outputs(), plan.load.batch_size).value();
    Sampler sampler = Sampler::Create(plan.load, plan.load.batch_size).value();
    std::unique_ptr<BatchProducer> producer;
    if (held != nullptr) {
      auto own = std::make_unique<HeldLoader>();
      *held = own.get();
      producer = std::move(own);
    } else {
      producer = std::make_unique<NativeBatchProducer>(std::move(loader), sampler, plan.load, layout,
                                                       workers_, readers_);
    }
    std::unique_ptr<Arena> arena = HostArena::Create(layout, 3, false, pool_).value();
    return std::make_shared<ResidentData>(ResidentData::Parts{
        dataset, std::move(plan), kGpu, std::move(arena), std::move(producer), sampler, ::geteuid()});
  }
  static std::shared_ptr<const Dataset> Numbers(std::set<uint64_t> bad = {}) {
    return std::make_shared<NumberDataset>(kSamples, std::move(bad));
  }
  static ResidentTable::Key KeyOf(const std::shared_ptr<const Dataset>& dataset) {
    return {0, kGpu, dataset, FeedSpec()};
  }

  MemoryBudget pool_{uint64_t{64} << 20};
  WorkerPool workers_{3};
  WorkerPool readers_{1, UINT32_MAX, PoolKind::kReaders};
};

// Purpose: one batch of a feed of resident samples: what its requests become. Owns its memory.
class Batches final : public BatchFill::Owner {
 public:
  Batches(ResidentTest& /*test*/, const std::shared_ptr<ResidentData>& data, FeedSpec spec,
          MemoryBudget& pool, WorkerPool& workers)
      : spec_(std::move(spec)),
        sampler_(Sampler::Create(spec_, kSamples).value()),
        layout_(BatchLayout::Create({{kIndexTensor, DType::kUint32, {}}}, spec_.batch_size).value()),
        arena_(HostArena::Create(layout_, 3, false, pool).value()),
        producer_(data, data->parts().plan, sampler_, spec_.on_bad_sample, data->parts().dataset->info(),
                  workers),
        context_{*arena_, sampler_, spec_.on_bad_sample, FeedRecorder(nullptr, 0, 1),
                 std::make_shared<FeedShare>(0, 1)} {}

  void Ask(uint64_t epoch, uint64_t batch) {
    fill_ = std::make_shared<BatchFill>(context_, *this, 0, sampler_.Plan(epoch, batch));
    producer_.Produce(fill_->NextRequest());
  }
  void Stop() {
    context_.stopped = true;
    producer_.Cancel();
  }
  ResidentBatchProducer& producer() { return producer_; }
  // Waits until the batch is there.
  FillResult Get() { return filled_.get_future().get(); }
  std::vector<uint32_t> Indexes(uint32_t count) const {
    const auto* const first = reinterpret_cast<const uint32_t*>(arena_->FillAddress({0, 0, 1, 0}, 0));
    return {first, first + count};
  }
  const Sampler& sampler() const { return sampler_; }

 private:
  void OnPieceMemory() override {}
  void OnFilled(uint32_t /*slot*/, FillResult result) override { result_ = std::move(result); }
  void OnDelivered(uint32_t /*slot*/, const Status& /*status*/) override {
    filled_.set_value(std::move(result_));
  }
  bool OnReplace(uint32_t /*slot*/) override { return false; }

  const FeedSpec spec_;
  const Sampler sampler_;
  const BatchLayout layout_;
  const std::unique_ptr<Arena> arena_;
  ResidentBatchProducer producer_;
  BatchFill::Context context_;
  std::shared_ptr<BatchFill> fill_;
  FillResult result_;
  std::promise<FillResult> filled_;
};

FeedSpec Shuffled(uint32_t batch_size, OnBadSample on_bad_sample = OnBadSample::kFail) {
  FeedSpec spec;
  spec.batch_size = batch_size;
  spec.order = Order::kShuffle;
  spec.seed = 3;
  spec.on_bad_sample = on_bad_sample;
  return spec;
}

void AwaitLoaded(const ResidentData& data) {
  while (!data.loaded() && !data.failed()) std::this_thread::yield();
}

TEST_F(ResidentTest, AllSamplesAreLoadedInTheDatasetsOrder) {
  const auto data = MakeData(Numbers());
  data->Begin();
  AwaitLoaded(*data);
  ASSERT_TRUE(data->loaded());
  EXPECT_TRUE(data->bad().empty());
  auto& arena = const_cast<Arena&>(data->arena());
  const auto* const numbers = reinterpret_cast<const int64_t*>(arena.FillAddress({0, 0, kSamples, 0}, 0));
  for (uint32_t i = 0; i < kSamples; ++i) {
    EXPECT_EQ(numbers[i * NumberDataset::kNumbers], int64_t{i});
    EXPECT_EQ(numbers[(i + 1) * NumberDataset::kNumbers - 1], int64_t{i});
  }
}

TEST_F(ResidentTest, ABatchIsTheListOfItsSamples) {
  const auto data = MakeData(Numbers());
  const auto batches = std::make_shared<Batches>(*this, data, Shuffled(16), pool_, workers_);
  batches->Ask(2, 1);  // before anything is loaded
  data->Begin();
  EXPECT_OK(batches->Get().status);
  const BatchSamples expected = batches->sampler().SamplesOf(batches->sampler().Plan(2, 1));
  const std::vector<uint32_t> indexes = batches->Indexes(16);
  for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(indexes[i], expected[i]);
}

TEST_F(ResidentTest, BadSamplesAreReportedInEachBatchThatHasThem) {
  const std::set<uint64_t> bad = {3, 4, 17, 39};
  const auto data = MakeData(Numbers(bad));
  data->Begin();
  for (const OnBadSample how : {OnBadSample::kFail, OnBadSample::kSkip, OnBadSample::kZero}) {
    const auto batches = std::make_shared<Batches>(*this, data, Shuffled(kSamples, how), pool_, workers_);
    batches->Ask(0, 0);
    const FillResult result = batches->Get();
    const BatchSamples ids = batches->sampler().SamplesOf(batches->sampler().Plan(0, 0));
    if (how == OnBadSample::kFail) {
      EXPECT_EQ(result.status.code(), Code::kDataLoss);
      uint32_t first = 0;
      while (!bad.contains(ids[first])) ++first;
      EXPECT_THAT(result.status.message(),
                  HasSubstr("read number " + std::to_string(ids[first]) + ": it is bad"));
      continue;
    }
    ASSERT_OK(result.status);
    EXPECT_EQ(result.bad.size(), bad.size());
    std::vector<uint32_t> expected;
    for (uint32_t i = 0; i < kSamples; ++i) {
      const auto id = static_cast<uint32_t>(ids[i]);
      if (!bad.contains(id))
        expected.push_back(id);
      else if (how == OnBadSample::kZero)
        expected.push_back(id | kZeroIndex);
    }
    EXPECT_EQ(batches->Indexes(static_cast<uint32_t>(expected.size())), expected);
  }
}

TEST_F(ResidentTest, RequestsOfAStoppedFeedDoNotWaitForTheSamples) {
  HeldLoader* loader = nullptr;
  const auto data = MakeData(Numbers(), &loader);
  data->Begin();
  ASSERT_EQ(loader->held.size(), 1U);
  const auto stopped = std::make_shared<Batches>(*this, data, Shuffled(8), pool_, workers_);
  const auto other = std::make_shared<Batches>(*this, data, Shuffled(8), pool_, workers_);
  stopped->Ask(0, 0);
  other->Ask(0, 0);
  stopped->Stop();
  (void)stopped->Get();
  // Nor does one that comes late.
  const auto late = std::make_shared<Batches>(*this, data, Shuffled(8), pool_, workers_);
  late->Stop();
  late->Ask(0, 0);
  (void)late->Get();
  EXPECT_FALSE(data->AtRest());
  loader->held.front()->Complete(OkStatus());
  loader->held.clear();
  EXPECT_OK(other->Get().status);
  EXPECT_TRUE(data->AtRest());
}

TEST_F(ResidentTest, WhatCannotBeLoadedFailsEveryRequest) {
  HeldLoader* loader = nullptr;
  const auto data = MakeData(Numbers(), &loader);
  data->Begin();
  const auto early = std::make_shared<Batches>(*this, data, Shuffled(8), pool_, workers_);
  early->Ask(0, 0);
  loader->held.front()->Complete(ResourceExhausted("no memory for it"));
  loader->held.clear();
  const auto late = std::make_shared<Batches>(*this, data, Shuffled(8), pool_, workers_);
  late->Ask(0, 0);
  for (const auto& batches : {early, late})
    EXPECT_THAT(batches->Get().status.message(), HasSubstr("no memory for it"));
  EXPECT_TRUE(data->failed());
}

// ---- Sharing ----

TEST_F(ResidentTest, FeedsOfOneKeyShareAndOthersDoNot) {
  ResidentTable table(kLong);
  table.Start();
  const auto numbers = Numbers();
  int made = 0;
  const auto make = [&] {
    ++made;
    return Result<std::shared_ptr<ResidentData>>(MakeData(numbers));
  };
  ResidentTable::Key key = KeyOf(numbers);
  ASSERT_OK_AND_ASSIGN(auto one, table.Acquire(key, make));
  ASSERT_OK_AND_ASSIGN(auto other, table.Acquire(key, make));
  EXPECT_EQ(one, other);
  EXPECT_EQ(made, 1);
  for (const auto change : {0, 1, 2, 3}) {
    ResidentTable::Key changed = key;
    if (change == 0) changed.owner = 7;
    if (change == 1) changed.gpu_uuid = "GPU-2";
    if (change == 2) changed.dataset = Numbers();  // opened again
    if (change == 3) changed.load.valid = true;
    ASSERT_OK_AND_ASSIGN(const auto apart, table.Acquire(changed, make));
    EXPECT_NE(apart, one);
  }
  EXPECT_EQ(made, 5);
  // Kept for the next feed.
  const ResidentData* const kept = one.get();
  one.reset();
  other.reset();
  ASSERT_OK_AND_ASSIGN(one, table.Acquire(key, make));
  EXPECT_EQ(one.get(), kept);
  one.reset();
  table.Stop();
  EXPECT_EQ(pool_.used_bytes(), 0U);
}

TEST_F(ResidentTest, ThoseWithoutAUserGiveWay) {
  ResidentTable table(kLong);
  table.Start();
  const auto numbers = Numbers();
  const auto make = [&] { return Result<std::shared_ptr<ResidentData>>(MakeData(numbers)); };
  ASSERT_OK_AND_ASSIGN(auto used, table.Acquire(KeyOf(numbers), make));
  const uint64_t bytes = pool_.used_bytes();
  ResidentTable::Key other = KeyOf(numbers);
  other.owner = 1;
  ASSERT_OK(table.Acquire(other, make));
  EXPECT_EQ(pool_.used_bytes(), 2 * bytes);
  table.FreeIdle(std::chrono::steady_clock::now() + kLong);
  EXPECT_EQ(pool_.used_bytes(), bytes) << "the one in use stays";
  used.reset();
  table.FreeIdle(std::chrono::steady_clock::now() + kLong);
  EXPECT_EQ(pool_.used_bytes(), 0U);
}

TEST_F(ResidentTest, ThoseWithoutAUserGoAfterAWhile) {
  ResidentTable table(std::chrono::milliseconds(1));
  table.Start();
  const auto numbers = Numbers();
  ASSERT_OK(table.Acquire(KeyOf(numbers),
                          [&] { return Result<std::shared_ptr<ResidentData>>(MakeData(numbers)); }));
  while (pool_.used_bytes() != 0) std::this_thread::yield();
}

TEST_F(ResidentTest, LoadingEndsWhenNobodyWantsTheSamples) {
  HeldLoader* loader = nullptr;
  ResidentTable table(kLong);
  table.Start();
  const auto numbers = Numbers();
  const auto make = [&] { return Result<std::shared_ptr<ResidentData>>(MakeData(numbers, &loader)); };
  ASSERT_OK_AND_ASSIGN(auto data, table.Acquire(KeyOf(numbers), make));
  const std::shared_ptr<PieceRequest> request = loader->held.front();
  loader->held.clear();
  data.reset();
  table.FreeIdle(std::chrono::steady_clock::now());  // asks, and does not wait
  std::thread asks([&] { table.FreeIdle(std::chrono::steady_clock::now() + kLong); });
  while (request->Wanted(0)) std::this_thread::yield();
  EXPECT_NE(pool_.used_bytes(), 0U) << "the loader may still write";
  request->Complete(OkStatus());
  // The request, too, is an owner.
  const_cast<std::shared_ptr<PieceRequest>&>(request).reset();
  asks.join();
  EXPECT_EQ(pool_.used_bytes(), 0U);
}

TEST_F(ResidentTest, FailedOnesAreMadeAnew) {
  HeldLoader* loader = nullptr;
  ResidentTable table(kLong);
  table.Start();
  const auto numbers = Numbers();
  const auto make = [&] { return Result<std::shared_ptr<ResidentData>>(MakeData(numbers, &loader)); };
  EXPECT_EQ(table
                .Acquire(KeyOf(numbers),
                         [] { return Result<std::shared_ptr<ResidentData>>(ResourceExhausted("no room")); })
                .status()
                .code(),
            Code::kResourceExhausted);
  ASSERT_OK_AND_ASSIGN(auto failed, table.Acquire(KeyOf(numbers), make));
  loader->held.front()->Complete(ResourceExhausted("no memory for it"));
  loader->held.clear();
  ASSERT_OK_AND_ASSIGN(auto again, table.Acquire(KeyOf(numbers), make));
  EXPECT_NE(failed, again);
  loader->held.front()->Complete(OkStatus());
  loader->held.clear();
  EXPECT_TRUE(again->loaded());
  failed.reset();
  again.reset();
}

}  // namespace
}  // namespace pinfeed
