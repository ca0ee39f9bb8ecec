// SPDX-License-Identifier: Apache-2.0
// How a queue ends.
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

}  // namespace
}  // namespace pinfeed
