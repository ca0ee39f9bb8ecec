// SPDX-License-Identifier: Apache-2.0
// How a queue ends.
#include "tests/unit/feed_fixture.h"

namespace pinfeed {
namespace {

using FeedQueueTest = FeedTest;

// What a member has been given and not taken may still be another's: nobody is told of the end before.
TEST_F(FeedQueueTest, QueueEndsOnlyOnceItsLastBatchesAreTaken) {
  FeedSpec spec = Spec(10, 1);
  spec.sharing = Sharing::kQueue;
  spec.group_size = 2;
  const auto feed = Make(spec, std::make_shared<NumberDataset>(20), 4);
  PageClient first(*feed);
  PageClient second(*feed);
  ASSERT_OK(feed->Attach(first.pages(), std::nullopt));
  ASSERT_OK(feed->Attach(second.pages(), std::nullopt));
  WaitFor([&] { return first.ready() == 1 && second.ready() == 1; });
  second.Release(*second.Next(), *feed);
  feed->ReadReleases();
  EXPECT_EQ(second.state(), FeedState::kRunning);
  feed->Detach(first.pages());  // without having taken its own
  ASSERT_TRUE(second.Next().has_value());
  EXPECT_FALSE(second.Next().has_value());
  feed->Detach(second.pages());
}

TEST_F(FeedQueueTest, QueueEndsForMembersThatHoldTheirLastBatches) {
  FeedSpec spec = Spec(10, 1);
  spec.sharing = Sharing::kQueue;
  spec.group_size = 2;
  const auto feed = Make(spec, std::make_shared<NumberDataset>(20), 4);
  PageClient first(*feed);
  PageClient second(*feed);
  ASSERT_OK(feed->Attach(first.pages(), std::nullopt));
  ASSERT_OK(feed->Attach(second.pages(), std::nullopt));
  for (PageClient* client : {&first, &second}) {
    ASSERT_TRUE(client->Next().has_value());
    client->words().taken.store(1);
  }
  feed->ReadReleases();
  EXPECT_EQ(first.state(), FeedState::kEnded);
  EXPECT_EQ(second.state(), FeedState::kEnded);
  feed->Detach(first.pages());
  feed->Detach(second.pages());
}

}  // namespace
}  // namespace pinfeed
