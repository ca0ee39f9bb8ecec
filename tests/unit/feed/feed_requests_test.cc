// SPDX-License-Identifier: Apache-2.0
// A feed of requests, whose clients, consumers and clock a test plays.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "server/loading/request_batch_producer.h"
#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

using std::chrono::microseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kMaxRequests = 4;  // of a batch
constexpr uint32_t kDelayUs = 1000;
constexpr uint32_t kSlots = 16;  // of a client
constexpr uint64_t kRequestBytes = sizeof(int64_t) * NumberDataset::kNumbers;

// A client process: its memory, and what it was told.
class PlayedClient final : public BatcherQueue::Client {
 public:
  struct Answered {
    Status status;
    std::string bytes;
  };
  void Write(uint32_t slot, int64_t number) { memory_[slot].fill(number); }
  void Break(uint32_t slot) { broken_.insert(slot); }

  Result<std::span<const std::byte>> Read(uint32_t slot, uint64_t bytes) override {
    if (broken_.contains(slot)) return DataLoss("broken");
    return std::as_bytes(std::span(memory_[slot])).first(bytes);
  }
  void Answer(uint32_t slot, const Status& status, std::span<const std::byte> answer) override {
    const MutexLock lock(mutex_);
    const bool first =
        answers_
            .emplace(slot, Answered{status, {reinterpret_cast<const char*>(answer.data()), answer.size()}})
            .second;
    EXPECT_TRUE(first) << "slot " << slot << " was answered twice";
  }
  void HangUp() override { hung_up = true; }

  // What slot was told since the last call; nothing if it was not.
  std::optional<Answered> Take(uint32_t slot) {
    const MutexLock lock(mutex_);
    const auto found = answers_.find(slot);
    if (found == answers_.end()) return std::nullopt;
    Answered answered = found->second;
    answers_.erase(found);
    return answered;
  }
  Code CodeOf(uint32_t slot) {
    const std::optional<Answered> answered = Take(slot);
    return answered ? answered->status.code() : Code::kOk;
  }

  std::atomic<bool> hung_up{false};

 private:
  std::array<std::array<int64_t, NumberDataset::kNumbers>, kSlots> memory_{};
  std::set<uint32_t> broken_;
  Mutex mutex_;
  std::map<uint32_t, Answered> answers_ PF_GUARDED_BY(mutex_);
};

class FeedRequestsTest : public FeedTest {
 protected:
  FeedRequestsTest() : FeedTest(pinfeed::Producer::kNative) {}

  void Open(bool redeal = false, uint32_t queue_limit = 8) {
    FeedSpec spec;
    spec.batch_size = kMaxRequests;
    spec.sharing = Sharing::kQueue;
    spec.group = "numbers";
    spec.batcher = BatcherSpec{
        kDelayUs, queue_limit, 0, 8, TensorSpec{"", DType::kInt64, {NumberDataset::kNumbers}}, redeal};
    std::shared_ptr<const Dataset> dataset = MakeRequestDataset(spec);
    auto sampler = std::move(Sampler::Create(spec, dataset->info().samples)).value();
    auto loader = std::move(SampleLoader::Create(std::move(dataset), spec)).value();
    auto layout = std::move(BatchLayout::Create(loader->outputs(), kMaxRequests)).value();
    auto arena = std::move(HostArena::Create(layout, 3, true, pool_)).value();
    auto producer = std::make_unique<RequestBatchProducer>(*spec.batcher, std::move(loader), *workers_,
                                                           [this] { return now_.load(); });
    queue_ = producer->requests();
    feed_ = feeds_.emplace_back(
        MakeOver(spec, std::move(producer), std::move(layout), sampler, std::move(arena)));
    consumer_.emplace(*feed_);
    ASSERT_OK(feed_->Attach(consumer_->participant()));
    ASSERT_OK(queue_->AddClient(client_));
  }
  void TearDown() override {
    if (feed_ != nullptr) feed_->Depart(consumer_->participant(), Ended());
  }

  void Pass(microseconds time) { now_ = now_.load() + time; }
  // Submits the slot's own number.
  void Submit(uint32_t slot, std::optional<microseconds> deadline = std::nullopt) {
    client_->Write(slot, slot);
    BatcherQueue::Request request{client_, slot, kRequestBytes};
    if (deadline) request.deadline = now_.load() + *deadline;
    ASSERT_OK(queue_->Submit(std::move(request)));
  }
  void SubmitAll(std::initializer_list<uint32_t> slots) {
    for (const uint32_t slot : slots) Submit(slot);
  }
  // Closes a batch that is not full.
  void Close() {
    Pass(microseconds(kDelayUs));
    queue_->Poll();
  }
  // The next batch, released without a word to the queue.
  std::optional<BatchDescriptor> NextUntaken() {
    const std::optional<BatchDescriptor> batch = consumer_->Next();
    if (batch) consumer_->Release(*batch, *feed_);
    return batch;
  }
  // Takes the next batch as `consumer`, and returns its numbers.
  std::vector<uint64_t> TakeBatch(BatcherQueue::ConsumerId consumer, uint32_t open) {
    const std::optional<BatchDescriptor> batch = consumer_->Next();
    if (!batch) return {};
    key_ = {batch->epoch, batch->batch_index};
    EXPECT_EQ(queue_->Take(key_, consumer), open);
    std::vector<uint64_t> numbers = consumer_->Ids(*batch);
    consumer_->Release(*batch, *feed_);
    return numbers;
  }
  Result<uint32_t> Answer(BatcherQueue::ConsumerId consumer, const std::vector<std::string>& texts) {
    std::vector<BatcherQueue::Output> outputs;
    for (const std::string& text : texts)
      outputs.push_back({text.starts_with("!"), std::as_bytes(std::span(text))});
    return queue_->Answer(key_, consumer, outputs);
  }
  uint64_t EndedAs(RequestEnd end) const { return queue_->counts().ends[static_cast<size_t>(end)]; }

  std::atomic<BatcherQueue::Time> now_{BatcherQueue::Time(std::chrono::hours(1))};
  std::shared_ptr<PlayedClient> client_ = std::make_shared<PlayedClient>();
  std::shared_ptr<BatcherQueue> queue_;
  std::shared_ptr<Feed> feed_;
  std::optional<PageClient> consumer_;
  BatcherQueue::BatchKey key_;
};

TEST_F(FeedRequestsTest, AFullBatchComesAtOnceInTheOrderOfArrival) {
  Open();
  SubmitAll({7, 2, 9, 0, 5});
  EXPECT_THAT(TakeBatch(1, 4), ElementsAre(7, 2, 9, 0));
  EXPECT_EQ(queue_->counts().waiting, 1U);
  EXPECT_EQ(consumer_->ready(), 0U);
}

TEST_F(FeedRequestsTest, ABatchThatIsNotFullComesAfterTheDelayOfItsFirstRequest) {
  Open();
  Submit(3);
  Pass(microseconds(400));
  Submit(1);
  EXPECT_EQ(queue_->Poll(), now_.load() + microseconds(600));
  EXPECT_EQ(consumer_->ready(), 0U);
  Pass(microseconds(600));
  queue_->Poll();
  EXPECT_THAT(TakeBatch(1, 2), ElementsAre(3, 1));
}

TEST_F(FeedRequestsTest, EachRequestGetsItsAnswerOrItsError) {
  Open();
  SubmitAll({3, 1, 2});
  Close();
  ASSERT_THAT(TakeBatch(1, 3), ElementsAre(3, 1, 2));
  EXPECT_EQ(Answer(1, {"one"}).status().code(), Code::kInvalidArgument);
  Pass(microseconds(500));
  EXPECT_EQ(Answer(1, {"three", "!no", "more than 8"}).value(), 3U);
  EXPECT_EQ(client_->Take(3)->bytes, "three");
  EXPECT_THAT(client_->Take(1)->status.message(), HasSubstr("!no"));
  EXPECT_THAT(client_->Take(2)->status.message(), HasSubstr("max_answer_bytes"));
  EXPECT_EQ(EndedAs(RequestEnd::kAnswered), 1U);
  EXPECT_EQ(EndedAs(RequestEnd::kModelError), 2U);
  EXPECT_EQ(queue_->counts().latency.sum_ns, 1'500'000U);
  EXPECT_EQ(Answer(1, {"three", "one", "two"}).value(), 0U) << "a batch is answered once";
}

TEST_F(FeedRequestsTest, RequestsThatCannotBeAcceptedAreAnswered) {
  Open(/*redeal=*/false, /*queue_limit=*/2);
  SubmitAll({1, 2, 3});
  EXPECT_EQ(client_->CodeOf(3), Code::kResourceExhausted);
  ASSERT_OK(queue_->Submit({client_, 4, kRequestBytes - 1}));
  EXPECT_EQ(client_->CodeOf(4), Code::kInvalidArgument);
  EXPECT_EQ(queue_->Submit({client_, 1, kRequestBytes}).code(), Code::kFailedPrecondition);
  EXPECT_EQ(EndedAs(RequestEnd::kRefused), 2U);
}

TEST_F(FeedRequestsTest, ARequestThatCannotBeLoadedFailsAlone) {
  Open();
  client_->Break(1);
  SubmitAll({3, 1, 2, 0});
  EXPECT_THAT(TakeBatch(1, 3), ElementsAre(3, 2, 0));
  EXPECT_EQ(client_->CodeOf(1), Code::kDataLoss);
  EXPECT_EQ(Answer(1, {"a", "b", "c"}).value(), 3U);
  EXPECT_EQ(client_->Take(0)->bytes, "c");
}

TEST_F(FeedRequestsTest, ABatchWithoutAGoodRequestIsNotToBeComputed) {
  Open();
  client_->Break(1);
  Submit(1);
  Close();
  EXPECT_THAT(TakeBatch(1, 0), IsEmpty());
  EXPECT_EQ(client_->CodeOf(1), Code::kDataLoss);
}

TEST_F(FeedRequestsTest, ACancelledRequestIsLeftOutOrItsAnswerIsDropped) {
  Open();
  SubmitAll({3, 1});
  queue_->CancelRequest(client_, 3);
  EXPECT_EQ(client_->CodeOf(3), Code::kCancelled);
  Close();
  ASSERT_THAT(TakeBatch(1, 1), ElementsAre(1));
  queue_->CancelRequest(client_, 1);
  EXPECT_EQ(client_->CodeOf(1), Code::kCancelled);
  EXPECT_EQ(Answer(1, {"late"}).value(), 0U);
  EXPECT_FALSE(client_->Take(1).has_value());
  queue_->CancelRequest(client_, 1);  // it has ended
  EXPECT_FALSE(client_->Take(1).has_value());
}

TEST_F(FeedRequestsTest, ADeadlineEndsARequestInAnyState) {
  Open();
  Submit(1, microseconds(100));
  Submit(2, microseconds(3000));
  EXPECT_EQ(queue_->Poll(), now_.load() + microseconds(100));
  Pass(microseconds(100));
  queue_->Poll();
  EXPECT_EQ(client_->CodeOf(1), Code::kDeadlineExceeded);
  Pass(microseconds(900));
  queue_->Poll();
  ASSERT_THAT(TakeBatch(1, 1), ElementsAre(2));
  Pass(microseconds(2000));
  EXPECT_EQ(queue_->Poll(), std::nullopt);
  EXPECT_EQ(client_->CodeOf(2), Code::kDeadlineExceeded);
  EXPECT_EQ(Answer(1, {"late"}).value(), 0U);
}

TEST_F(FeedRequestsTest, WhatAnEndedConsumerHadTakenFails) {
  Open();
  SubmitAll({1, 2});
  Close();
  ASSERT_THAT(TakeBatch(1, 2), ElementsAre(1, 2));
  queue_->RemoveConsumer(2);  // another one
  EXPECT_FALSE(client_->Take(1).has_value());
  queue_->RemoveConsumer(1);
  EXPECT_EQ(client_->CodeOf(1), Code::kUnavailable);
  EXPECT_EQ(client_->CodeOf(2), Code::kUnavailable);
  EXPECT_EQ(EndedAs(RequestEnd::kConsumerGone), 2U);
}

TEST_F(FeedRequestsTest, WithRedealItGoesToAnotherConsumerBeforeLaterRequests) {
  Open(/*redeal=*/true);
  SubmitAll({1, 2});
  Close();
  ASSERT_THAT(TakeBatch(1, 2), ElementsAre(1, 2));
  const BatcherQueue::BatchKey first = key_;
  Submit(3);
  queue_->RemoveConsumer(1);
  Close();
  EXPECT_THAT(TakeBatch(2, 3), ElementsAre(1, 2, 3));
  EXPECT_EQ(queue_->Take(first, 9), 0U) << "the old batch is void";
  EXPECT_EQ(queue_->counts().again, 2U);
  queue_->RemoveConsumer(2);
  Close();
  EXPECT_THAT(TakeBatch(3, 3), ElementsAre(1, 2, 3));
  queue_->RemoveConsumer(3);
  EXPECT_EQ(client_->CodeOf(1), Code::kUnavailable) << "it may be the cause";
  EXPECT_EQ(client_->CodeOf(2), Code::kUnavailable);
  EXPECT_FALSE(client_->Take(3).has_value()) << "it was dealt again once";
}

TEST_F(FeedRequestsTest, AClientThatEndsIsNotAnswered) {
  Open();
  SubmitAll({1, 2});
  Close();
  ASSERT_THAT(TakeBatch(1, 2), ElementsAre(1, 2));
  Submit(3);
  queue_->RemoveClient(client_);
  EXPECT_EQ(Answer(1, {"a", "b"}).value(), 0U);
  EXPECT_EQ(EndedAs(RequestEnd::kClientGone), 3U);
  for (const uint32_t slot : {1, 2, 3}) EXPECT_FALSE(client_->Take(slot).has_value());
}

TEST_F(FeedRequestsTest, ABatchThatNobodyTakesKeepsNothingOfAClient) {
  Open();
  client_->Break(1);
  SubmitAll({1, 2});
  Close();
  ASSERT_TRUE(NextUntaken().has_value());
  EXPECT_EQ(client_->CodeOf(1), Code::kDataLoss);
  queue_->RemoveClient(client_);
  const std::weak_ptr<PlayedClient> gone = client_;
  client_.reset();
  WaitFor([&] { return gone.expired(); });
}

TEST_F(FeedRequestsTest, ABatchThatNobodyAnswersIsGivenUpForLaterOnes) {
  Open();
  const std::shared_ptr<PlayedClient> first = client_;
  std::vector<std::shared_ptr<PlayedClient>> clients;
  for (size_t i = 0; first->CodeOf(0) != Code::kUnavailable; ++i) {
    ASSERT_LE(i, BatcherQueue::kMaxBatches + 3);
    if (i % kSlots == 0 && i > 0) {
      client_ = clients.emplace_back(std::make_shared<PlayedClient>());
      ASSERT_OK(queue_->AddClient(client_));
    }
    Submit(i % kSlots);
    Close();
    ASSERT_TRUE(NextUntaken().has_value());
  }
  EXPECT_GE(EndedAs(RequestEnd::kConsumerGone), 1U);
}

TEST_F(FeedRequestsTest, WhatIsDealtAgainDoesNotWaitForTheDelay) {
  Open(/*redeal=*/true);
  SubmitAll({1, 2, 3, 4});
  ASSERT_THAT(TakeBatch(1, 4), ElementsAre(1, 2, 3, 4));
  queue_->CancelRequest(client_, 4);
  queue_->RemoveConsumer(1);
  EXPECT_THAT(TakeBatch(2, 3), ElementsAre(1, 2, 3));
}

TEST_F(FeedRequestsTest, NothingIsDealtAgainOnceTheFeedDrains) {
  Open(/*redeal=*/true);
  SubmitAll({1, 2});
  Close();
  ASSERT_THAT(TakeBatch(1, 2), ElementsAre(1, 2));
  feed_->Drain();
  queue_->RemoveConsumer(1);
  EXPECT_EQ(client_->CodeOf(1), Code::kUnavailable);
  EXPECT_EQ(client_->CodeOf(2), Code::kUnavailable);
}

TEST_F(FeedRequestsTest, AFeedThatStopsAnswersAndHangsUp) {
  Open();
  SubmitAll({1, 2});
  Close();
  ASSERT_THAT(TakeBatch(1, 2), ElementsAre(1, 2));
  Submit(3);
  feed_->Depart(consumer_->participant(), Ended());
  feed_.reset();
  EndFeeds();
  for (const uint32_t slot : {1, 2, 3}) EXPECT_EQ(client_->CodeOf(slot), Code::kUnavailable) << slot;
  EXPECT_TRUE(client_->hung_up);
  ASSERT_OK(queue_->Submit({client_, 4, kRequestBytes}));
  EXPECT_EQ(client_->CodeOf(4), Code::kUnavailable);
  EXPECT_EQ(queue_->AddClient(client_).code(), Code::kUnavailable);
}

TEST_F(FeedRequestsTest, ADrainGivesWhatWaitsAndRefusesTheRest) {
  Open();
  Submit(1);
  feed_->Drain();
  EXPECT_THAT(TakeBatch(1, 1), ElementsAre(1));
  Submit(2);
  EXPECT_EQ(client_->CodeOf(2), Code::kUnavailable);
  EXPECT_EQ(Answer(1, {"a"}).value(), 1U);
  EXPECT_EQ(client_->Take(1)->bytes, "a");
  while (consumer_->Next()) {
  }
  EXPECT_EQ(consumer_->state(), FeedState::kDraining);
}

}  // namespace
}  // namespace pinfeed
