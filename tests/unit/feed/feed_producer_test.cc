// SPDX-License-Identifier: Apache-2.0
// What a feed makes of a producer that completes late, twice, in any order, after a cancel, or never.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

constexpr uint32_t kBatch = 4;

// Keeps the requests, which the test fills and completes. Has no dataset: sample i is the number i.
class ScriptedProducer final : public BatchProducer {
 public:
  explicit ScriptedProducer(uint64_t samples) {
    info_.path = "/scripted";
    info_.samples = samples;
  }

  void Produce(std::shared_ptr<PieceRequest> request) override {
    if (!fills_at_once || !fills_at_once()) return requests.push_back(std::move(request));
    Fill(*request);
    EXPECT_TRUE(request->Complete(OkStatus()));
  }
  void Cancel() override { cancelled = true; }
  ProducerTimes times() const override { return {}; }
  const DatasetInfo& dataset() const override { return info_; }
  std::string Describe(uint64_t sample) const override { return "number " + std::to_string(sample); }
  const std::optional<DeferredPixelOps>& deferred_pixel_ops() const override { return none_; }

  // Writes the samples of the request's batch, of a feed without shuffling.
  static void Fill(const PieceRequest& request) {
    SamplePlaces places;
    ASSERT_OK(request.Places(request.begin(), request.end(), places));
    const uint64_t first = request.plan().batch_index * kBatch;
    for (uint32_t i = request.begin(); i < request.end(); ++i) {
      std::byte* const place = places[0].data() + (i - request.begin()) * places[0].size();
      auto* const numbers = reinterpret_cast<int64_t*>(place);
      std::fill(numbers, numbers + NumberDataset::kNumbers, static_cast<int64_t>(first + i));
    }
  }

  std::vector<std::shared_ptr<PieceRequest>> requests;
  std::function<bool()> fills_at_once;  // whether the next request is; unset: none
  bool cancelled = false;

 private:
  DatasetInfo info_;
  const std::optional<DeferredPixelOps> none_;
};

class FeedProducerTest : public FeedTest {
 protected:
  FeedProducerTest() : FeedTest(Producer::kNative) {}
  void Open(uint32_t slots, OnBadSample on_bad_sample = OnBadSample::kFail, uint32_t batch_size = kBatch) {
    const uint64_t samples = uint64_t{250} * batch_size;
    FeedSpec spec = Spec(batch_size);
    spec.order = Order::kSequential;
    spec.on_bad_sample = on_bad_sample;
    auto layout =
        BatchLayout::Create({{"data", DType::kInt64, {NumberDataset::kNumbers}}}, batch_size).value();
    auto arena = HostArena::Create(layout, slots, false, pool_).value();
    auto sampler = Sampler::Create(spec, samples).value();
    auto producer = std::make_unique<ScriptedProducer>(samples);
    producer_ = producer.get();
    feed_ = feeds_.emplace_back(
        MakeOver(spec, std::move(producer), std::move(layout), sampler, std::move(arena)));
    client_.emplace(*feed_, Sampler::Start{});
    ASSERT_EQ(producer_->requests.size(), slots);
  }
  // A test that completes what is left ends the feed with it; else it would never come to rest.
  void Close() {
    feed_->Depart(client_->participant(), Ended());
    feed_->Stop([this] { at_rest_ = true; });
    while (!producer_->requests.empty()) {
      const auto request = std::move(producer_->requests.back());
      producer_->requests.pop_back();
      request->Complete(OkStatus());
    }
    EXPECT_TRUE(at_rest_);
  }

  // Takes a batch of each slot and releases it, before the feed reads the releases.
  std::vector<BatchDescriptor> TakeAndRelease(uint32_t slots) {
    std::vector<BatchDescriptor> batches;
    for (uint32_t i = 0; i < slots; ++i) {
      const BatchDescriptor& batch = batches.emplace_back(*client_->Next());
      client_->words().slots[batch.slot].generation.store(batch.generation, std::memory_order_seq_cst);
    }
    return batches;
  }

  PieceRequest& Request(size_t index) { return *producer_->requests.at(index); }
  void FillAndComplete(size_t index) {
    ScriptedProducer::Fill(Request(index));
    EXPECT_TRUE(Request(index).Complete(OkStatus()));
  }

  std::shared_ptr<Feed> feed_;
  ScriptedProducer* producer_ = nullptr;
  std::optional<AttachedClient> client_;
  bool at_rest_ = false;
};

TEST_F(FeedProducerTest, CompletionsInAnyOrderArePublishedInOrder) {
  Open(3);
  FillAndComplete(2);
  FillAndComplete(1);
  EXPECT_EQ(client_->ready(), 0U);
  FillAndComplete(0);
  for (uint64_t b = 0; b < 3; ++b) EXPECT_EQ(client_->Ids(*client_->Next()), Expected(*feed_, 0, b));
  Close();
}

TEST_F(FeedProducerTest, BatchesThatAreFilledAtOnceArePublishedTogether) {
  constexpr uint32_t kSlots = 12;
  Open(kSlots);
  std::vector<uint64_t> ready;  // before each request
  uint64_t batch = 0;
  const auto release_all = [&] {
    for (const BatchDescriptor& next : TakeAndRelease(kSlots))
      EXPECT_EQ(client_->Ids(next), Expected(*feed_, 0, batch++));
    ready.clear();
    feed_->ReadReleases();
  };
  for (uint32_t i = 0; i < kSlots; ++i) FillAndComplete(i);
  producer_->requests.clear();
  producer_->fills_at_once = [&] {
    ready.push_back(client_->ready());
    return true;
  };
  release_all();
  EXPECT_THAT(ready, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8));
  EXPECT_EQ(client_->ready(), kSlots);
  // The others do not wait for one that is filled later.
  producer_->fills_at_once = [&] {
    ready.push_back(client_->ready());
    return ready.size() < kSlots;
  };
  release_all();
  EXPECT_EQ(client_->ready(), kSlots - 1);
  FillAndComplete(0);
  EXPECT_EQ(client_->ready(), kSlots);
  producer_->fills_at_once = {};
  Close();
}

TEST_F(FeedProducerTest, BatchesOfManySamplesArePublishedOneByOne) {
  Open(3, OnBadSample::kFail, 8192);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(Request(i).Complete(OkStatus()));
  producer_->requests.clear();
  std::vector<uint64_t> ready;  // before each request
  producer_->fills_at_once = [&] {
    ready.push_back(client_->ready());
    return true;
  };
  TakeAndRelease(3);
  feed_->ReadReleases();
  EXPECT_THAT(ready, ElementsAre(0, 1, 2));
  producer_->fills_at_once = {};
  Close();
}

TEST_F(FeedProducerTest, SecondCompletionHasNoEffect) {
  Open(3);
  FillAndComplete(1);
  EXPECT_FALSE(Request(1).Complete(DataLoss("told twice")));
  Request(1).Bad(0, DataLoss("told late"));
  EXPECT_EQ(client_->ready(), 0U) << "the first batch is not there";
  FillAndComplete(0);
  EXPECT_FALSE(Request(0).Complete(OkStatus()));
  ASSERT_EQ(client_->ready(), 2U);
  EXPECT_EQ(client_->Ids(*client_->Next()), Expected(*feed_, 0, 0));
  const BatchDescriptor second = *client_->Next();
  EXPECT_EQ(client_->Ids(second), Expected(*feed_, 0, 1));
  // The slot is filled anew: a completion of its earlier batch does not publish it.
  client_->Release(second, *feed_);
  ASSERT_EQ(producer_->requests.size(), 4U);
  EXPECT_FALSE(Request(1).Complete(OkStatus()));
  FillAndComplete(2);
  EXPECT_EQ(client_->ready(), 1U);
  EXPECT_EQ(feed_->Snapshot().bad_samples, 0U);
  Close();
}

TEST_F(FeedProducerTest, MemoryOfACancelledPieceWaitsForItsCompletion) {
  Open(3);
  FillAndComplete(0);
  feed_->Depart(client_->participant(), Ended());
  feed_->Stop([this] { at_rest_ = true; });
  EXPECT_TRUE(producer_->cancelled);
  EXPECT_FALSE(Request(1).Wanted(Request(1).begin()));
  EXPECT_FALSE(at_rest_);
  EXPECT_TRUE(Request(2).Complete(OkStatus()));
  EXPECT_FALSE(at_rest_) << "one piece is still being written";
  EXPECT_TRUE(Request(1).Complete(Unavailable("the producer stopped")));
  EXPECT_TRUE(at_rest_);
  EXPECT_EQ(client_->ready(), 1U) << "nothing is published after the stop";
  EXPECT_FALSE(Request(1).Complete(OkStatus()));
  producer_->requests.clear();
}

TEST_F(FeedProducerTest, PieceThatIsNeverCompletedKeepsItsSlotAndTheOrder) {
  Open(3);
  FillAndComplete(1);
  FillAndComplete(2);
  feed_->ReadReleases();
  EXPECT_EQ(client_->ready(), 0U) << "later batches wait for the first";
  EXPECT_EQ(producer_->requests.size(), 3U) << "no slot is filled twice";
  EXPECT_EQ(feed_->Snapshot().slots_filling, 1U);
  // It comes back after all.
  FillAndComplete(0);
  EXPECT_EQ(client_->ready(), 3U);
  Close();
}

TEST_F(FeedProducerTest, ErrorOfTheProducerFailsTheFeed) {
  Open(3);
  FillAndComplete(0);
  EXPECT_TRUE(Request(1).Complete(ResourceExhausted("no memory for the piece")));
  EXPECT_EQ(client_->Ids(*client_->Next()), Expected(*feed_, 0, 0));
  EXPECT_EQ(client_->state(), FeedState::kFailed);
  EXPECT_THAT(std::string(client_->page().error_text, client_->page().error_bytes),
              HasSubstr("no memory for the piece"));
  FillAndComplete(2);
  EXPECT_EQ(client_->ready(), 0U) << "what completes behind the failure is not published";
  Close();
}

TEST_F(FeedProducerTest, FirstBadSampleFailsTheBatchInWhateverOrderTheyAreReported) {
  Open(3);
  ScriptedProducer::Fill(Request(0));
  Request(0).Bad(3, DataLoss("number 3 is bad"));
  EXPECT_TRUE(Request(0).Wanted(2)) << "an earlier sample may be bad too";
  Request(0).Bad(1, DataLoss("number 1 is bad"));
  EXPECT_FALSE(Request(0).Wanted(2));
  EXPECT_TRUE(Request(0).Complete(OkStatus()));
  EXPECT_EQ(client_->state(), FeedState::kFailed);
  const std::string error(client_->page().error_text, client_->page().error_bytes);
  EXPECT_THAT(error, HasSubstr("number 1 is bad"));
  Close();
}

TEST_F(FeedProducerTest, SkippedSamplesLeaveNoGap) {
  Open(3, OnBadSample::kSkip);
  ScriptedProducer::Fill(Request(0));
  Request(0).Bad(2, DataLoss("number 2 is bad"));
  Request(0).Bad(0, DataLoss("number 0 is bad"));
  EXPECT_TRUE(Request(0).Complete(OkStatus()));
  const BatchDescriptor batch = *client_->Next();
  EXPECT_EQ(batch.skipped, 2U);
  EXPECT_THAT(client_->Ids(batch), ElementsAre(1, 3));
  Close();
}

}  // namespace
}  // namespace pinfeed
