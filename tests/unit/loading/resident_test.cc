// SPDX-License-Identifier: Apache-2.0
// How resident samples are loaded, and lists of them made.
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/loading/resident_batch_producer.h"
#include "tests/unit/loading/resident_fixture.h"

namespace pinfeed {
namespace {

// Purpose: one batch of a feed of resident samples: what its requests become. Owns its memory.
class Batches final : public BatchFill::Owner {
 public:
  Batches(ResidentTest& /*test*/, const std::shared_ptr<ResidentData>& data, FeedSpec spec,
          MemoryBudget& pool, WorkerPool& workers)
      : spec_(std::move(spec)),
        sampler_(Sampler::Create(spec_, data->parts().dataset->info().samples).value()),
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

  std::function<void()> on_delivered;  // in place of the result

 private:
  void OnPieceMemory() override {}
  void OnFilled(uint32_t /*slot*/, FillResult result) override { result_ = std::move(result); }
  void OnDelivered(uint32_t /*slot*/, const Status& /*status*/) override {
    if (on_delivered) return on_delivered();
    filled_.set_value(std::move(result_));
  }
  bool OnReplace(uint32_t /*slot*/) override { return false; }

  const FeedSpec spec_;
  const Sampler sampler_;
  const BatchLayout layout_;
  const std::unique_ptr<Arena> arena_;
  ResidentBatchProducer producer_;
  FillContext context_;
  std::shared_ptr<BatchFill> fill_;
  FillResult result_;
  std::promise<FillResult> filled_;
};

FeedSpec Shuffled(uint32_t batch_size, OnBadSample on_bad_sample = OnBadSample::kFail) {
  return {.batch_size = batch_size, .order = Order::kShuffle, .seed = 3, .on_bad_sample = on_bad_sample};
}

void AwaitLoaded(const ResidentData& data) {
  while (!data.loaded() && !data.failed()) std::this_thread::yield();
}

TEST_F(ResidentTest, AllSamplesAreLoadedInTheDatasetsOrder) {
  const auto data = MakeData(Numbers());
  data->Begin();
  AwaitLoaded(*data);
  ASSERT_TRUE(data->loaded());
  EXPECT_EQ(data->bad_samples(), 0U);
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

// A trainer that takes small batches as soon as they are there: the thread that serves it serves others, too.
TEST_F(ResidentTest, AThreadThatAsksIsNotKeptBySmallBatches) {
  constexpr int kBatches = 1000;
  const auto data = MakeData(Numbers());
  data->Begin();
  AwaitLoaded(*data);
  const auto batches = std::make_shared<Batches>(*this, data, Shuffled(1), pool_, workers_);
  std::promise<void> over;
  int delivered = 0;
  int here = 0;
  batches->on_delivered = [&, self = std::this_thread::get_id()] {
    here += std::this_thread::get_id() == self ? 1 : 0;
    if (++delivered == kBatches)
      over.set_value();
    else
      batches->Ask(0, delivered % kSamples);
  };
  batches->Ask(0, 0);
  over.get_future().wait();
  EXPECT_LT(here, 100);
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

TEST_F(ResidentTest, OfManyBadSamplesTheFirstHaveReasons) {
  constexpr uint32_t kMany = 2000, kGood = 7, kRest = 1500;
  std::set<uint64_t> bad;
  for (uint32_t i = 0; i < kMany; ++i)
    if (i != kGood) bad.insert(i);
  const auto data = MakeData(std::make_shared<NumberDataset>(kMany, bad));
  data->Begin();
  AwaitLoaded(*data);
  EXPECT_EQ(data->bad_samples(), kMany - 1);
  EXPECT_OK(data->WhyBad(kGood));
  EXPECT_THAT(data->WhyBad(0), StatusIs(Code::kDataLoss, HasSubstr("read number 0: it is bad")));
  EXPECT_THAT(data->WhyBad(kMaxBadNotes), StatusIs(Code::kDataLoss, HasSubstr("it is bad")));
  EXPECT_THAT(data->WhyBad(kMaxBadNotes + 1),
              StatusIs(Code::kDataLoss, HasSubstr("number 1001 could not be loaded")));
  // A client can write any number into its list.
  for (const uint32_t beyond : {kMany, UINT32_MAX}) EXPECT_OK(data->WhyBad(beyond));
  for (const OnBadSample how : {OnBadSample::kFail, OnBadSample::kSkip, OnBadSample::kZero}) {
    FeedSpec spec;  // in order, so that the first is that of the dataset
    spec.batch_size = kRest;
    spec.on_bad_sample = how;
    const auto batches = std::make_shared<Batches>(*this, data, spec, pool_, workers_);
    batches->Ask(0, 0);
    const FillResult result = batches->Get();
    const bool fails = how == OnBadSample::kFail;
    EXPECT_EQ(result.bad_samples, fails ? 1 : kRest - 1);
    EXPECT_EQ(result.bad.size(), fails ? 1 : kMaxBadNotes);
    EXPECT_EQ(result.skipped, how == OnBadSample::kSkip ? kRest - 1 : 0);
    if (fails) {
      EXPECT_THAT(result.status, StatusIs(Code::kDataLoss, HasSubstr("read number 0: it is bad")));
    }
    if (how == OnBadSample::kSkip) {
      EXPECT_EQ(batches->Indexes(1), std::vector<uint32_t>{kGood});
      EXPECT_EQ(result.samples, 1U);
    }
    EXPECT_FALSE(result.all_bad);
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

}  // namespace
}  // namespace pinfeed
