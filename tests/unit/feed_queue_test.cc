// SPDX-License-Identifier: Apache-2.0
// How a queue ends.
#include <set>

#include "tests/unit/feed_fixture.h"

namespace pinfeed {
namespace {

// A queue of two batches of one epoch, and two members.
class FeedQueueTest : public FeedTest {
 protected:
  FeedQueueTest() {
    EXPECT_TRUE(feed_->Attach(first_.pages(), std::nullopt).ok());
    EXPECT_TRUE(feed_->Attach(second_.pages(), std::nullopt).ok());
  }

  static FeedSpec PairSpec() {
    FeedSpec spec = Spec(10, 1);
    spec.sharing = Sharing::kQueue;
    spec.group_size = 2;
    return spec;
  }

  const std::shared_ptr<Feed> feed_ = Make(PairSpec(), std::make_shared<NumberDataset>(20), 4);
  PageClient first_{*feed_};
  PageClient second_{*feed_};
};

// What a member has been given and not taken may still be another's: nobody is told of the end before.
TEST_F(FeedQueueTest, QueueEndsOnlyOnceItsLastBatchesAreTaken) {
  WaitFor([&] { return first_.ready() == 1 && second_.ready() == 1; });
  second_.Release(*second_.Next(), *feed_);
  feed_->ReadReleases();
  EXPECT_EQ(second_.state(), FeedState::kRunning);
  feed_->Detach(first_.pages());  // without having taken its own
  ASSERT_TRUE(second_.Next().has_value());
  EXPECT_FALSE(second_.Next().has_value());
  feed_->Detach(second_.pages());
}

TEST_F(FeedQueueTest, QueueEndsForMembersThatHoldTheirLastBatches) {
  for (PageClient* client : {&first_, &second_}) ASSERT_TRUE(client->Next().has_value());
  feed_->ReadReleases();
  EXPECT_EQ(first_.state(), FeedState::kEnded);
  EXPECT_EQ(second_.state(), FeedState::kEnded);
  feed_->Detach(first_.pages());
  feed_->Detach(second_.pages());
}

// A member that is on its way keeps the feed alive, and gets what those before it left.
TEST_F(FeedQueueTest, BatchesOfAQueueWaitForWhoComesWhenNobodyIsThere) {
  WaitFor([&] { return first_.ready() == 1 && second_.ready() == 1; });
  feed_->Detach(first_.pages());
  EXPECT_EQ(feed_->Evict(second_.pages(), {Code::kAborted, "evicted"}), 0U);
  feed_->ReadReleases();
  PageClient third(*feed_);
  ASSERT_OK(feed_->Attach(third.pages(), std::nullopt));
  std::set<uint64_t> batches;
  while (const auto batch = third.Next()) {
    batches.insert(batch->batch_index);
    third.Release(*batch, *feed_);
  }
  EXPECT_EQ(batches, (std::set<uint64_t>{0, 1}));
  feed_->Detach(third.pages());
}

TEST_F(FeedQueueTest, QueueThatDrainsWithABatchNobodyTookEndsNoEpoch) {
  WaitFor([&] { return first_.ready() == 1 && second_.ready() == 1; });
  second_.Release(*second_.Next(), *feed_);
  feed_->Drain();
  EXPECT_EQ(second_.state(), FeedState::kDraining);
  feed_->Detach(first_.pages());
  feed_->Detach(second_.pages());
}

}  // namespace
}  // namespace pinfeed
