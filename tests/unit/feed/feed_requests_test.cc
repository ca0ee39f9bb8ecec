// SPDX-License-Identifier: Apache-2.0
// Requests of a batcher's clients.
#include <numeric>

#include "tests/unit/feed/feed_requests_fixture.h"

namespace pinfeed {
namespace {

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

TEST_F(FeedRequestsTest, LargeAnswersArePassedOnInSteps) {
  max_answer_bytes_ = 3 << 20;
  Open();
  SubmitAll({3, 1, 2});
  Close();
  ASSERT_THAT(TakeBatch(1, 3), ElementsAre(3, 1, 2));
  const std::string answer(max_answer_bytes_, 'a');
  const std::vector<BatcherQueue::Output> outputs(3,
                                                  {false, answer.size(), std::as_bytes(std::span(answer))});
  size_t next = 0;
  EXPECT_EQ(queue_->Answer(key_, 1, outputs, &next).value(), 2U);
  EXPECT_EQ(next, 2U);
  EXPECT_EQ(client_->Take(1)->bytes, answer);
  EXPECT_EQ(EndedAs(RequestEnd::kAnswered), 2U);
  EXPECT_EQ(queue_->Answer(key_, 1, outputs, &next).value(), 1U);
  EXPECT_EQ(next, 3U);
  EXPECT_EQ(client_->Take(2)->bytes, answer);
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

// A consumer that waits for requests is not held up; one whose requests wait to be loaded is.
TEST_F(FeedRequestsTest, OnlyWaitingForWhatIsToBeLoadedIsAStall) {
  constexpr uint64_t kWhileNs = 5'000'000;
  Open();
  consumer_->Wait(*feed_);
  const auto stalled = [](const StallTimes& stall) {
    return std::accumulate(stall.begin(), stall.end(), uint64_t{0});
  };
  // Until the consumer has waited for a while longer.
  const auto let_wait = [&] {
    const uint64_t start = feed_->Snapshot().starved_ns;
    WaitFor([&] { return feed_->Snapshot().starved_ns >= start + kWhileNs; });
  };
  let_wait();
  const FeedSnapshot idle = feed_->Snapshot();
  EXPECT_EQ(stalled(idle.stall_ns), 0U);
  EXPECT_EQ(idle.bound_share, 0.0);
  EXPECT_EQ(stalled(feed_->SnapshotOf(consumer_->participant()).stall_ns), 0U);
  client_->Hold(true);
  Submit(1);
  WaitForReads(1);
  let_wait();
  client_->Hold(false);
  Close();
  EXPECT_THAT(TakeBatch(1, 1), ElementsAre(1));
  const FeedSnapshot loaded = feed_->Snapshot();
  EXPECT_GE(stalled(loaded.stall_ns), kWhileNs / 2);
  EXPECT_LE(stalled(loaded.stall_ns), loaded.starved_ns - idle.starved_ns);
  EXPECT_GE(stalled(feed_->SnapshotOf(consumer_->participant()).stall_ns), kWhileNs / 2);
  EXPECT_GT(loaded.bound_share, 0.0);
}

TEST_F(FeedRequestsTest, ABatchWithoutAGoodRequestIsNotToBeComputed) {
  Open();
  client_->Break(1);
  client_->Hold(true);
  Submit(1);
  Close();
  client_->Hold(false);
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
