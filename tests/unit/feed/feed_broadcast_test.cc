// SPDX-License-Identifier: Apache-2.0
// A feed that gives every batch to all of its group: who gets what, and what is left out.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

class FeedBroadcastTest : public FeedTest {
 protected:
  std::shared_ptr<Feed> MakeGroup(std::shared_ptr<const Dataset> dataset, uint32_t group_size = 1,
                                  uint32_t slots = 4) {
    FeedSpec spec = Spec(8);
    spec.sharing = Sharing::kBroadcast;
    spec.group_size = group_size;
    return Make(spec, std::move(dataset), slots);
  }
};

TEST_P(FeedBroadcastTest, GivesEveryBatchToAllAndWaitsForTheSlowest) {
  const auto feed = MakeGroup(std::make_shared<NumberDataset>(1000), 2, 3);
  AttachedClient fast(*feed);
  EXPECT_EQ(feed->Snapshot().state, "waiting");
  AttachedClient slow(*feed);
  for (uint64_t b = 0; b < 3; ++b) {
    const auto batch = fast.Next();
    EXPECT_EQ(fast.Ids(*batch), Expected(*feed, 0, b));
    fast.Release(*batch, *feed);
  }
  feed->ReadReleases();
  EXPECT_EQ(feed->Snapshot().slots_lent, 3U);  // the slow one has them all
  EXPECT_EQ(fast.ready(), 0U);
  for (uint64_t b = 0; b < 100; ++b) {
    const auto batch = slow.Next();
    EXPECT_EQ(slow.Ids(*batch), Expected(*feed, 0, b));
    slow.Release(*batch, *feed);
    const auto follow = fast.Next();
    EXPECT_EQ(fast.Ids(*follow), Expected(*feed, 0, b + 3));
    fast.Release(*follow, *feed);
  }
  EXPECT_EQ(feed->Depart(slow.participant(), Ended()), 0U);  // gone: the fast one goes on alone
  for (int i = 0; i < 20; ++i) fast.Release(*fast.Next(), *feed);
  EXPECT_EQ(feed->Depart(fast.participant(), Ended()), 0U);
}

TEST_P(FeedBroadcastTest, LoadsNothingThatNobodyWants) {
  const auto feed = MakeGroup(std::make_shared<NumberDataset>(800));
  AttachedClient goes(*feed);
  WaitFor([&] { return goes.ready() == 4; });
  AttachedClient farther(*feed, Sampler::Start{9, 50});
  AttachedClient far(*feed, Sampler::Start{7, 3});
  feed->Depart(goes.participant(), Ended());
  const auto batch = far.Next();
  EXPECT_EQ(far.Ids(*batch), Expected(*feed, 7, 3));
  EXPECT_LE(feed->Snapshot().batches, 8U);  // two times its slots
  EXPECT_EQ(farther.ready(), 0U);
  feed->Depart(far.participant(), Ended());
  const auto last = farther.Next();
  EXPECT_EQ(farther.Ids(*last), Expected(*feed, 9, 50));
  EXPECT_LE(feed->Snapshot().batches, 16U);
}

TEST_P(FeedBroadcastTest, SkipsNothingWhileSomebodyMayComeForIt) {
  const std::optional<Sampler::Start> joins[] = {std::nullopt, Sampler::Start{0, 6}, Sampler::Start{3, 0}};
  for (const auto& join : joins) {
    std::atomic<bool> reads{true};
    const auto dataset = std::make_shared<NumberDataset>(800, std::set<uint64_t>(), [&](uint64_t) {
      while (!reads) std::this_thread::yield();
    });
    const auto feed = MakeGroup(dataset);
    AttachedClient goes(*feed);
    WaitFor([&] { return goes.ready() == 4; });
    AttachedClient far(*feed, Sampler::Start{7, 3});
    reads = false;
    for (int i = 0; i < 2; ++i) goes.Release(*goes.Next(), *feed);
    feed->ReadReleases();
    feed->Depart(goes.participant(), Ended());  // what is being read, nobody wants any more
    const Sampler::Start first = join.value_or(feed->Upcoming());
    EXPECT_EQ(feed->Upcoming(), (Sampler::Start{0, 4}));
    AttachedClient late(*feed, join);
    reads = true;
    for (uint64_t i = 0; i < 5; ++i) {
      const auto batch = late.Next();
      EXPECT_EQ(batch->epoch, first.epoch);
      EXPECT_EQ(batch->batch_index, first.batch_index + i);
      late.Release(*batch, *feed);
    }
    feed->Depart(late.participant(), Ended());
    EXPECT_EQ(far.Ids(*far.Next()), Expected(*feed, 7, 3));
    feed->Depart(far.participant(), Ended());
    StopAndWait(*feed);
  }
}

TEST_P(FeedBroadcastTest, MembersThatComeBackGoOnWhereEachWas) {
  const auto feed = MakeGroup(std::make_shared<NumberDataset>(1000), 2);
  AttachedClient ahead(*feed, Sampler::Start{0, 7});
  AttachedClient behind(*feed, Sampler::Start{0, 5});
  for (uint64_t b = 5; b < 20; ++b) {
    const auto batch = behind.Next();
    EXPECT_EQ(behind.Ids(*batch), Expected(*feed, 0, b));
    behind.Release(*batch, *feed);
    if (b < 7) continue;
    const auto other = ahead.Next();
    EXPECT_EQ(ahead.Ids(*other), Expected(*feed, 0, b));
    ahead.Release(*other, *feed);
  }
  PageClient late(*feed);
  EXPECT_THAT(feed->Attach(late.From(Sampler::Start{0, 3})),
              StatusIs(Code::kFailedPrecondition, HasSubstr("already at batch")));
}

PF_OVER_ALL_PRODUCERS(FeedBroadcastTest);

}  // namespace
}  // namespace pinfeed
