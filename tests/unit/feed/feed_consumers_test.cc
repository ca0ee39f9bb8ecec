// SPDX-License-Identifier: Apache-2.0
// A batcher's consumers: whom a batch is given, and what becomes of it when they stop, hang or end.
#include <memory>
#include <optional>
#include <vector>

#include "tests/unit/feed/feed_requests_fixture.h"

namespace pinfeed {
namespace {

class FeedConsumersTest : public FeedRequestsTest {};

TEST_F(FeedConsumersTest, WhatAnEndedConsumerHadTakenFails) {
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

TEST_F(FeedConsumersTest, WithRedealItGoesToAnotherConsumerInTheNextBatch) {
  Open(/*redeal=*/true);
  SubmitAll({1, 2});
  Close();
  ASSERT_THAT(TakeBatch(1, 2), ElementsAre(1, 2));
  const BatcherQueue::BatchKey first = key_;
  Submit(3);
  queue_->RemoveConsumer(1);
  EXPECT_THAT(TakeBatch(2, 3), ElementsAre(3, 1, 2)) << "behind what has its place";
  EXPECT_EQ(queue_->Take(first, 9), 0U) << "the old batch is void";
  EXPECT_EQ(queue_->counts().again, 2U);
  queue_->RemoveConsumer(2);
  EXPECT_THAT(TakeBatch(3, 3), ElementsAre(1, 2, 3));
  queue_->RemoveConsumer(3);
  EXPECT_EQ(client_->CodeOf(1), Code::kUnavailable) << "it may be the cause";
  EXPECT_EQ(client_->CodeOf(2), Code::kUnavailable);
  EXPECT_FALSE(client_->Take(3).has_value()) << "it was dealt again once";
}

TEST_F(FeedConsumersTest, ABatchThatNobodyAnswersIsGivenUpForLaterOnes) {
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

TEST_F(FeedConsumersTest, WhatIsDealtAgainDoesNotWaitForTheDelay) {
  Open(/*redeal=*/true);
  SubmitAll({1, 2, 3, 4});
  ASSERT_THAT(TakeBatch(1, 4), ElementsAre(1, 2, 3, 4));
  queue_->CancelRequest(client_, 4);
  queue_->RemoveConsumer(1);
  EXPECT_THAT(TakeBatch(2, 3), ElementsAre(1, 2, 3));
}

TEST_F(FeedConsumersTest, ABatchWaitsUntilAConsumerAsksForIt) {
  Open();
  AttachedClient other(*feed_);
  SubmitAll({1, 2, 3, 4});
  WaitFor([&] { return feed_->Snapshot().slots_ready == 1; });
  feed_->ReadReleases();
  EXPECT_EQ(consumer_->ready() + other.ready(), 0U);
  other.Wait(*feed_);
  EXPECT_EQ(other.ready(), 1U);
  SubmitAll({5, 6, 7, 8});
  WaitFor([&] { return feed_->Snapshot().slots_ready == 1; });
  other.Wait(*feed_);
  EXPECT_EQ(other.ready(), 1U) << "it has not taken the first";
  EXPECT_THAT(TakeBatch(1, 4), ElementsAre(5, 6, 7, 8));
  feed_->Depart(other.participant(), Ended());
  EXPECT_THAT(TakeBatch(1, 4), ElementsAre(1, 2, 3, 4));
}

TEST_F(FeedConsumersTest, TheConsumerThatHasWaitedLongestIsTheNext) {
  Open();
  AttachedClient other(*feed_);
  for (const uint64_t turn : {0, 1, 2}) {
    consumer_->Wait(*feed_, 10 + turn % 2);
    other.Wait(*feed_, 11 - turn % 2);
    SubmitAll({1, 2, 3, 4});
    PageClient& next = turn % 2 == 0 ? *consumer_ : other;
    WaitFor([&] { return next.ready() == 1; });
    next.Release(*next.Next(), *feed_);
    queue_->RemoveClient(client_);
  }
  EXPECT_EQ(consumer_->ready() + other.ready(), 0U);
}

TEST_F(FeedConsumersTest, WhatAConsumerDoesNotTakeGoesToAnother) {
  Open();
  queue_->AddConsumer(1, 11);
  SubmitAll({1, 2});
  Close();
  consumer_->Wait(*feed_);
  WaitFor([&] { return consumer_->ready() == 1; });  // which is stopped now
  feed_->ReadReleases();                             // the queue hears of it under the same lock
  Pass(BatcherQueue::kTakeWithin);
  queue_->Poll();
  EXPECT_EQ(queue_->counts().again, 0U) << "there is no other";
  AttachedClient other(*feed_);
  queue_->AddConsumer(2, 22);
  other.Wait(*feed_);
  EXPECT_EQ(queue_->Poll(), now_.load() + BatcherQueue::kTakeWithin);
  EXPECT_EQ(queue_->counts().again, 2U);
  const std::optional<BatchDescriptor> batch = other.Next();
  ASSERT_TRUE(batch.has_value());
  EXPECT_THAT(other.Ids(*batch), ElementsAre(1, 2));
  key_ = {batch->epoch, batch->batch_index};
  EXPECT_EQ(queue_->Take(key_, 2), 2U);
  EXPECT_THAT(TakeBatch(1, 0), ElementsAre(1, 2)) << "the first one goes on";
  key_ = {batch->epoch, batch->batch_index};
  EXPECT_EQ(Answer(2, {"a", "b"}).value(), 2U);
  EXPECT_EQ(client_->Take(1)->bytes, "a");
}

TEST_F(FeedConsumersTest, RequestsAreTakenBackNoMoreThanTwice) {
  Open();
  queue_->AddConsumer(1, 11);
  queue_->AddConsumer(2, 22);
  SubmitAll({1, 2});
  Close();
  for (uint32_t taken_back : {0U, 2U, 4U}) {
    ASSERT_TRUE(NextUntaken().has_value());
    EXPECT_EQ(queue_->counts().again, taken_back);
    Pass(BatcherQueue::kTakeWithin - microseconds(1));
    queue_->Poll();
    EXPECT_EQ(queue_->counts().again, taken_back);
    Pass(microseconds(1));
    queue_->Poll();
  }
  EXPECT_EQ(queue_->counts().again, 4U);
  EXPECT_EQ(queue_->counts().waiting, 0U);
  Pass(microseconds(1000));
  SubmitAll({3});
  Close();
  EXPECT_THAT(TakeBatch(1, 1), ElementsAre(3)) << "later ones are not held up";
}

TEST_F(FeedConsumersTest, ConsumersAreCountedWithWhatTheyHold) {
  Open();
  queue_->AddConsumer(1, 11);
  queue_->AddConsumer(2, 22);
  SubmitAll({1, 2});
  Close();
  ASSERT_THAT(TakeBatch(2, 2), ElementsAre(1, 2));
  queue_->CancelRequest(client_, 1);
  Pass(microseconds(300));
  std::vector<BatcherQueue::ConsumerCounts> consumers = queue_->counts().consumers;
  ASSERT_EQ(consumers.size(), 2U);
  EXPECT_EQ(consumers[0].pid, 11);
  EXPECT_EQ(consumers[0].batches + consumers[0].requests + consumers[0].oldest_ns, 0U);
  EXPECT_EQ(consumers[1].pid, 22);
  EXPECT_EQ(consumers[1].batches, 1U);
  EXPECT_EQ(consumers[1].requests, 1U);
  EXPECT_EQ(consumers[1].oldest_ns, 300'000U);
  ASSERT_OK(Answer(2, {"a", "b"}).status());
  queue_->RemoveConsumer(1);
  consumers = queue_->counts().consumers;
  ASSERT_EQ(consumers.size(), 1U);
  EXPECT_EQ(consumers[0].batches, 0U);
}

TEST_F(FeedConsumersTest, NothingIsDealtAgainOnceTheFeedDrains) {
  Open(/*redeal=*/true);
  SubmitAll({1, 2});
  Close();
  ASSERT_THAT(TakeBatch(1, 2), ElementsAre(1, 2));
  feed_->Drain();
  queue_->RemoveConsumer(1);
  EXPECT_EQ(client_->CodeOf(1), Code::kUnavailable);
  EXPECT_EQ(client_->CodeOf(2), Code::kUnavailable);
}

}  // namespace
}  // namespace pinfeed
