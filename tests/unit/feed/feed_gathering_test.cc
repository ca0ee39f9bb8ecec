// SPDX-License-Identifier: Apache-2.0
// Requests that are loaded while their batch gathers.
#include <atomic>
#include <memory>
#include <utility>

#include "tests/unit/feed/feed_requests_fixture.h"
#include "tests/unit/feed/piece_arena.h"

namespace pinfeed {
namespace {

class FeedGatheringTest : public FeedRequestsTest {
 protected:
  // Batches of two pieces. `held`: until the arena's LetGo, nothing is copied from them.
  PieceArena& OpenPieces(bool held, uint32_t pieces) {
    PieceArena* made = nullptr;
    Open(/*redeal=*/false, /*queue_limit=*/8, [&](auto slots) {
      auto arena = std::make_unique<PieceArena>(std::move(slots), held, pieces);
      made = arena.get();
      return arena;
    });
    return *made;
  }
};

TEST_F(FeedGatheringTest, RequestsAreLoadedBeforeTheirBatchCloses) {
  Open();
  Submit(1);
  WaitForReads(1);
  Submit(2);
  WaitForReads(2);
  EXPECT_EQ(queue_->counts().waiting, 2U);
  EXPECT_EQ(feed_->Snapshot().slots_ready, 0U);
  Close();
  EXPECT_EQ(queue_->counts().waiting, 0U);
  EXPECT_THAT(TakeBatch(1, 2), ElementsAre(1, 2));
  EXPECT_EQ(client_->reads, 2U) << "each is loaded once";
}

TEST_F(FeedGatheringTest, AClosedBatchWaitsForWhatIsBeingLoaded) {
  Open();
  client_->Hold(true);
  SubmitAll({1, 2});
  WaitForReads(2);
  Close();
  EXPECT_EQ(queue_->counts().waiting, 0U);
  EXPECT_EQ(feed_->Snapshot().slots_ready, 0U);
  client_->Hold(false);
  EXPECT_THAT(TakeBatch(1, 2), ElementsAre(1, 2));
}

TEST_F(FeedGatheringTest, WhatWaitedForASlotIsLoadedOnceThereIsOne) {
  Open();
  SubmitAll({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});  // fill three slots
  WaitForReads(12);
  SubmitAll({13, 14});
  EXPECT_THAT(TakeBatch(1, 4), ElementsAre(1, 2, 3, 4));
  WaitForReads(14);
  EXPECT_EQ(queue_->counts().waiting, 2U);
  ASSERT_THAT(TakeBatch(1, 4), ElementsAre(5, 6, 7, 8));
  ASSERT_THAT(TakeBatch(1, 4), ElementsAre(9, 10, 11, 12));
  Close();
  EXPECT_THAT(TakeBatch(1, 2), ElementsAre(13, 14));
}

TEST_F(FeedGatheringTest, ARequestThatIsCancelledIsLeftOutWhereverItsLoadIs) {
  Open();
  client_->Hold(true);
  SubmitAll({1, 2});
  WaitForReads(2);
  queue_->CancelRequest(client_, 1);  // while it is being loaded
  EXPECT_EQ(client_->CodeOf(1), Code::kCancelled);
  client_->Hold(false);
  Submit(3);
  WaitForReads(3);
  queue_->CancelRequest(client_, 3);
  Submit(4);  // takes the last place
  EXPECT_THAT(TakeBatch(1, 2), ElementsAre(2, 4));
  EXPECT_EQ(Answer(1, {"two", "four"}).value(), 2U);
  EXPECT_EQ(client_->Take(2)->bytes, "two");
  EXPECT_EQ(client_->Take(4)->bytes, "four");
}

TEST_F(FeedGatheringTest, WhatIsCancelledOnceItsBatchIsClosedStaysInIt) {
  Open();
  client_->Hold(true);
  SubmitAll({1, 2});
  WaitForReads(2);
  Close();
  queue_->CancelRequest(client_, 1);
  client_->Hold(false);
  EXPECT_THAT(TakeBatch(1, 1), ElementsAre(1, 2));
  EXPECT_EQ(Answer(1, {"one", "two"}).value(), 1U);
  EXPECT_EQ(client_->CodeOf(1), Code::kCancelled);
  EXPECT_EQ(client_->Take(2)->bytes, "two");
}

TEST_F(FeedGatheringTest, TheDelayIsThatOfTheFirstThatStillWaits) {
  Open();
  Submit(1, microseconds(300));
  Pass(microseconds(200));
  Submit(2);
  Pass(microseconds(100));
  EXPECT_EQ(queue_->Poll(), now_.load() + microseconds(900));
  EXPECT_EQ(client_->CodeOf(1), Code::kDeadlineExceeded);
  Pass(microseconds(900));
  queue_->Poll();
  EXPECT_THAT(TakeBatch(1, 1), ElementsAre(2));
}

TEST_F(FeedGatheringTest, ABatchWhoseRequestsHaveAllEndedGathersOn) {
  Open();
  SubmitAll({1, 2, 3});
  for (const uint32_t slot : {1, 2, 3}) queue_->CancelRequest(client_, slot);
  EXPECT_EQ(queue_->Poll(), std::nullopt);
  Close();
  EXPECT_EQ(queue_->counts().waiting, 0U);
  EXPECT_EQ(feed_->Snapshot().slots_ready, 0U);
  Submit(4);
  EXPECT_THAT(TakeBatch(1, 1), ElementsAre(4));
}

TEST_F(FeedGatheringTest, AFullBatchWhoseRequestsHaveAllEndedIsNotToBeComputed) {
  Open();
  client_->Hold(true);
  SubmitAll({1, 2, 3, 4});
  for (const uint32_t slot : {1, 2, 3, 4}) queue_->CancelRequest(client_, slot);
  client_->Hold(false);
  EXPECT_LE(TakeBatch(1, 0).size(), 3U) << "three workers may have begun";
}

TEST_F(FeedGatheringTest, ABadInputFailsBeforeItsBatchCloses) {
  Open();
  client_->Break(1);
  SubmitAll({1, 2});
  WaitFor([&] { return EndedAs(RequestEnd::kBadInput) == 1; });
  EXPECT_EQ(queue_->counts().waiting, 1U);
  Close();
  EXPECT_THAT(TakeBatch(1, 1), ElementsAre(2));
  EXPECT_EQ(client_->CodeOf(1), Code::kDataLoss);
  EXPECT_EQ(Answer(1, {"two"}).value(), 1U);
  EXPECT_EQ(client_->Take(2)->bytes, "two");
}

TEST_F(FeedGatheringTest, AClientsMemoryIsKeptWhileItsRequestIsLoaded) {
  Open();
  client_->Hold(true);
  Submit(1);
  WaitForReads(1);
  PlayedClient& loaded = *client_;
  queue_->RemoveClient(client_);
  const std::weak_ptr<PlayedClient> gone = client_;
  client_ = std::make_shared<PlayedClient>();
  ASSERT_OK(queue_->AddClient(client_));
  EXPECT_EQ(EndedAs(RequestEnd::kClientGone), 1U);
  Submit(2);
  WaitForReads(1);
  Close();
  EXPECT_EQ(feed_->Snapshot().slots_ready, 0U) << "its place is still being written";
  ASSERT_FALSE(gone.expired());
  loaded.Hold(false);
  EXPECT_THAT(TakeBatch(1, 1), ElementsAre(2));
  WaitFor([&] { return gone.expired(); });
}

TEST_F(FeedGatheringTest, ADrainClosesTheBatchThatGathers) {
  Open();
  client_->Hold(true);
  SubmitAll({1, 2});
  WaitForReads(2);
  feed_->Drain();
  client_->Hold(false);
  EXPECT_THAT(TakeBatch(1, 2), ElementsAre(1, 2));
  EXPECT_EQ(Answer(1, {"a", "b"}).value(), 2U);
  EXPECT_EQ(client_->Take(1)->bytes, "a");
  while (consumer_->Next()) {
  }
  EXPECT_EQ(consumer_->state(), FeedState::kDraining);
}

TEST_F(FeedGatheringTest, AFeedThatStopsWaitsForWhatIsBeingLoaded) {
  Open();
  client_->Hold(true);
  Submit(1);
  WaitForReads(1);
  std::atomic<bool> at_rest{false};
  feed_->Stop([&] { at_rest = true; });
  EXPECT_EQ(client_->CodeOf(1), Code::kUnavailable);
  EXPECT_TRUE(client_->hung_up);
  EXPECT_FALSE(at_rest);
  client_->Hold(false);
  WaitFor([&] { return at_rest.load(); });
}

TEST_F(FeedGatheringTest, WhatIsTakenBackFollowsWhatHasItsPlace) {
  Open();
  queue_->AddConsumer(1, 11);
  queue_->AddConsumer(2, 22);
  SubmitAll({1, 2, 3, 4});
  consumer_->Wait(*feed_);
  WaitFor([&] { return consumer_->ready() == 1; });  // which is stopped now
  feed_->ReadReleases();                             // the queue hears of it under the same lock
  Pass(BatcherQueue::kTakeWithin);
  SubmitAll({5, 6});
  WaitForReads(6);
  queue_->Poll();
  EXPECT_EQ(queue_->counts().again, 4U);
  WaitForReads(10);
  SubmitAll({7});
  ASSERT_TRUE(NextUntaken().has_value());  // the one that was void
  EXPECT_THAT(TakeBatch(2, 4), ElementsAre(5, 6, 1, 2));
  EXPECT_THAT(TakeBatch(2, 2), ElementsAre(3, 4)) << "at once";
  Close();
  EXPECT_THAT(TakeBatch(2, 1), ElementsAre(7));
}

TEST_F(FeedGatheringTest, TheLastPieceOfABatchGathersWhenItsTurnComes) {
  OpenPieces(/*held=*/false, /*pieces=*/4);
  SubmitAll({1, 2, 3});
  WaitForReads(3);
  queue_->CancelRequest(client_, 2);
  Submit(4);
  EXPECT_THAT(TakeBatch(1, 3), ElementsAre(1, 3, 4));
  SubmitAll({5, 6});
  WaitForReads(6);
  Close();
  EXPECT_THAT(TakeBatch(1, 2), ElementsAre(5, 6)) << "the second piece is empty";
}

TEST_F(FeedGatheringTest, APieceThatHasNoMemoryYetIsLoadedOnceItHas) {
  PieceArena& arena = OpenPieces(/*held=*/true, /*pieces=*/3);
  SubmitAll({1, 2, 3, 4});
  WaitFor([&] { return arena.waiting() == 2; });
  SubmitAll({5, 6, 7, 8});
  WaitForReads(7);
  EXPECT_EQ(queue_->counts().waiting, 0U);
  arena.LetGo();
  EXPECT_THAT(TakeBatch(1, 4), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(TakeBatch(1, 4), ElementsAre(5, 6, 7, 8));
}

TEST_F(FeedGatheringTest, WhatEndsBeforeItsPieceHasMemoryIsLeftOut) {
  PieceArena& arena = OpenPieces(/*held=*/true, /*pieces=*/3);
  SubmitAll({1, 2, 3, 4});
  WaitFor([&] { return arena.waiting() == 2; });
  SubmitAll({5, 6, 7, 8});
  WaitForReads(7);
  queue_->CancelRequest(client_, 8);
  arena.LetGo();
  EXPECT_THAT(TakeBatch(1, 4), ElementsAre(1, 2, 3, 4));
  ASSERT_THAT(TakeBatch(1, 3), ElementsAre(5, 6, 7));
  EXPECT_EQ(Answer(1, {"e", "f", "g"}).value(), 3U);
  EXPECT_EQ(client_->Take(7)->bytes, "g");
  EXPECT_EQ(client_->reads, 7U);
}

}  // namespace
}  // namespace pinfeed
