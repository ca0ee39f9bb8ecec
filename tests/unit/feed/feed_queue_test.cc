// SPDX-License-Identifier: Apache-2.0
// Whom a queue gives its batches, and how it ends.
#include <set>

#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

// A queue of two batches of one epoch, and two members.
class FeedQueueTest : public FeedTest {
 protected:
  static FeedSpec PairSpec() {
    FeedSpec spec = Spec(10, 1);
    spec.sharing = Sharing::kQueue;
    spec.group_size = 2;
    return spec;
  }

  const std::shared_ptr<Feed> feed_ = Make(PairSpec(), std::make_shared<NumberDataset>(20), 4);
  AttachedClient first_{*feed_};
  AttachedClient second_{*feed_};
};

// What a member has been given and not taken may still be another's: nobody is told of the end before.
TEST_P(FeedQueueTest, QueueEndsOnlyOnceItsLastBatchesAreTaken) {
  WaitFor([&] { return first_.ready() == 1 && second_.ready() == 1; });
  second_.Release(*second_.Next(), *feed_);
  feed_->ReadReleases();
  EXPECT_EQ(second_.state(), FeedState::kRunning);
  feed_->Depart(first_.participant(), Ended());  // without having taken its own
  ASSERT_TRUE(second_.Next().has_value());
  EXPECT_FALSE(second_.Next().has_value());
}

TEST_P(FeedQueueTest, QueueEndsForMembersThatHoldTheirLastBatches) {
  for (PageClient* client : {&first_, &second_}) ASSERT_TRUE(client->Next().has_value());
  feed_->ReadReleases();
  EXPECT_EQ(first_.state(), FeedState::kEnded);
  EXPECT_EQ(second_.state(), FeedState::kEnded);
}

TEST_P(FeedQueueTest, WhatComesBackAfterTheEndIsForMembersToCome) {
  ASSERT_TRUE(first_.Next().has_value());
  second_.Release(*second_.Next(), *feed_);
  feed_->ReadReleases();
  ASSERT_EQ(second_.state(), FeedState::kEnded);
  feed_->Depart(first_.participant(), Ended());  // while it holds its batch
  EXPECT_EQ(second_.participant().CountHeld(), 0U);
  AttachedClient third(*feed_);
  const auto batch = third.Next();
  ASSERT_TRUE(batch.has_value());
  third.Release(*batch, *feed_);
  EXPECT_FALSE(third.Next().has_value());
}

// A member that is on its way keeps the feed alive, and gets what those before it left.
TEST_P(FeedQueueTest, BatchesOfAQueueWaitForWhoComesWhenNobodyIsThere) {
  WaitFor([&] { return first_.ready() == 1 && second_.ready() == 1; });
  feed_->Depart(first_.participant(), Ended());
  EXPECT_EQ(feed_->Depart(second_.participant(), Evicted({Code::kAborted, "evicted"})), 0U);
  feed_->ReadReleases();
  AttachedClient third(*feed_);
  std::set<uint64_t> batches;
  while (const auto batch = third.Next()) {
    batches.insert(batch->batch_index);
    third.Release(*batch, *feed_);
  }
  EXPECT_EQ(batches, (std::set<uint64_t>{0, 1}));
}

TEST_P(FeedQueueTest, QueueThatDrainsWithABatchNobodyTookEndsNoEpoch) {
  WaitFor([&] { return first_.ready() == 1 && second_.ready() == 1; });
  second_.Release(*second_.Next(), *feed_);
  feed_->Drain();
  EXPECT_EQ(second_.state(), FeedState::kDraining);
}

// A queue without end, of which one member is there from the start.
class FeedQueueShareTest : public FeedTest {
 protected:
  void Open(uint32_t slots) {
    FeedSpec spec = Spec(10);
    spec.sharing = Sharing::kQueue;
    feed_ = Make(spec, std::make_shared<NumberDataset>(1000), slots);
    early_.emplace(*feed_);
  }

  uint32_t Ready() { return feed_->Snapshot().slots_ready; }

  std::shared_ptr<Feed> feed_;
  std::optional<AttachedClient> early_;
};

// The first member is stopped before it takes anything: a member that comes later still gets batches.
TEST_P(FeedQueueShareTest, StoppedMemberLeavesSlotsToOneThatComesLater) {
  for (const uint32_t slots : {3U, 4U, 16U, 64U}) {
    Open(slots);
    WaitFor([&] { return feed_->Snapshot().slots_lent + Ready() == slots; });
    const uint64_t kept = early_->ready();
    AttachedClient late(*feed_);
    for (int i = 0; i < 100; ++i) {
      const auto batch = late.Next();
      ASSERT_TRUE(batch.has_value());
      EXPECT_EQ(late.Ids(*batch), Expected(*feed_, batch->epoch, batch->batch_index));
      late.Release(*batch, *feed_);
    }
    EXPECT_EQ(early_->ready(), kept) << "it got more, though it takes nothing";
  }
}

// Whoever of several is stopped, the others go on.
TEST_P(FeedQueueShareTest, OneRunningMemberIsServedBesideTwoStoppedOnes) {
  Open(8);
  const AttachedClient late(*feed_);
  WaitFor([&] { return feed_->Snapshot().slots_lent + Ready() == 8; });
  AttachedClient third(*feed_);
  for (int i = 0; i < 100; ++i) third.Release(*third.Next(), *feed_);
}

// What is kept for others is filled, in order, and comes as soon as it is asked for.
TEST_P(FeedQueueShareTest, LoneMemberHasAllSlotsFilledAndGetsEveryBatchInOrder) {
  Open(4);
  WaitFor([&] { return feed_->Snapshot().slots_lent + Ready() == 4; });
  EXPECT_EQ(Ready(), 1U);
  EXPECT_EQ(feed_->Snapshot().slots_free, 0U);
  for (uint64_t b = 0; b < 200; ++b) {
    const auto batch = early_->Next();
    ASSERT_TRUE(batch.has_value());
    EXPECT_EQ(batch->epoch * 100 + batch->batch_index, b);
    early_->Release(*batch, *feed_);
  }
}

// The daemon looks at queues from time to time, since nobody rings when a batch is taken.
TEST_P(FeedQueueShareTest, MemberMayHoldTheBatchesOfAllSlots) {
  Open(4);
  std::vector<BatchDescriptor> held;
  while (held.size() < 4) {
    feed_->ReadReleases();
    if (early_->ready() > 0) held.push_back(*early_->Next());
    std::this_thread::yield();
  }
  for (uint64_t b = 0; b < 4; ++b) EXPECT_EQ(held[b].batch_index, b);
  for (const BatchDescriptor& batch : held) early_->Release(batch, *feed_);
  EXPECT_EQ(early_->Next()->batch_index, 4U);
}

// A client that never says what it has taken is served on what it releases.
TEST_P(FeedQueueShareTest, MemberThatDoesNotReportWhatItTookGoesOn) {
  Open(3);
  for (int i = 0; i < 50; ++i) {
    const auto batch = early_->Next();
    early_->words().taken.store(0);
    early_->Release(*batch, *feed_);
  }
}

// A batch that waits for a member when the feed drains or fails is given before that is said.
TEST_P(FeedQueueShareTest, WhatWaitsForAMemberIsGivenBeforeADrainEnds) {
  Open(4);
  WaitFor([&] { return feed_->Snapshot().slots_lent + Ready() == 4; });
  feed_->Drain();
  for (uint64_t b = 0; b < 4; ++b) {
    const auto batch = early_->Next();
    ASSERT_TRUE(batch.has_value());
    EXPECT_EQ(batch->batch_index, b);
  }
  EXPECT_FALSE(early_->Next().has_value());
  EXPECT_EQ(early_->state(), FeedState::kDraining);
}

PF_OVER_ALL_PRODUCERS(FeedQueueTest);
PF_OVER_ALL_PRODUCERS(FeedQueueShareTest);

}  // namespace
}  // namespace pinfeed
