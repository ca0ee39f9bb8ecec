// SPDX-License-Identifier: Apache-2.0
// What an evicted session keeps, and what its group gets back.
#include <atomic>
#include <memory>
#include <thread>

#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

const Status kWhy{Code::kAborted, "evicted: the host is needed"};

class FeedEvictTest : public FeedPairTest {};

TEST_P(FeedEvictTest, MemberKeepsWhatItTookAndTheGroupGoesOnWithTheRest) {
  Open(Sharing::kBroadcast, 0, 1000, 3);
  const auto& feed = feed_;
  PageClient& goes = *first_;
  PageClient& stays = *second_;
  const auto held = goes.Next();
  WaitFor([&] { return goes.ready() == 2; });
  EXPECT_EQ(feed->Depart(goes.participant(), Evicted(kWhy)), 1U);
  EXPECT_EQ(goes.state(), FeedState::kEvicted);
  EXPECT_FALSE(goes.Next().has_value());
  EXPECT_EQ(std::string(goes.page().error_text, goes.page().error_bytes), kWhy.message());
  for (uint64_t b = 0; b < 50; ++b) {
    const auto batch = stays.Next();
    EXPECT_EQ(stays.Ids(*batch), Expected(*feed, 0, b));
    EXPECT_TRUE(b == 0 || batch->slot != held->slot);
    stays.Release(*batch, *feed);
  }
  EXPECT_EQ(goes.Ids(*held), Expected(*feed, 0, 0));
  EXPECT_EQ(feed->SnapshotOf(goes.participant()).slots_lent, 1U);
  EXPECT_EQ(feed->Depart(goes.participant(), Evicted(kWhy)), 0U);  // it is no member any more
  goes.Release(*held, *feed);
  EXPECT_EQ(feed->SnapshotOf(goes.participant()).slots_lent, 0U);
  WaitFor([&] { return stays.ready() == 3; });
  EXPECT_EQ(feed->Depart(goes.participant(), Ended()), 0U);
  EXPECT_EQ(feed->Depart(stays.participant(), Ended()), 0U);
}

TEST_P(FeedEvictTest, WhatAProcessHeldGoesBackWhenItEnds) {
  Open(Sharing::kBroadcast, 0, 1000, 3);
  const auto& feed = feed_;
  PageClient& goes = *first_;
  PageClient& stays = *second_;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(goes.Next().has_value());
  EXPECT_EQ(feed->Depart(goes.participant(), Evicted(kWhy)), 3U);
  for (int i = 0; i < 3; ++i) stays.Release(*stays.Next(), *feed);
  feed->ReadReleases();
  EXPECT_EQ(stays.ready(), 0U);  // there is no slot left to fill
  EXPECT_EQ(feed->Depart(goes.participant(), Ended()), 0U);
  stays.Release(*stays.Next(), *feed);
}

TEST_P(FeedEvictTest, WhatIsLetGoOfIsRungForAsTheOthersMayWaitForIt) {
  Open(Sharing::kBroadcast, 0, 1000, 3);
  const auto held = first_->Next();
  feed_->Depart(first_->participant(), Evicted(kWhy));
  feed_->Depart(second_->participant(), Ended());
  EXPECT_EQ(first_->page().starved.load(), 1U);
  first_->Release(*held, *feed_);
  EXPECT_EQ(feed_->SnapshotOf(first_->participant()).slots_lent, 0U);
}

TEST_P(FeedEvictTest, QueueGivesToOthersWhatTheMemberHadNotTaken) {
  Open(Sharing::kQueue, 1, 32, 4);
  const auto& feed = feed_;
  PageClient& goes = *first_;
  PageClient& stays = *second_;
  WaitFor([&] { return goes.ready() + stays.ready() == 3; });  // and one waits for whoever takes first
  const auto held = goes.Next();
  EXPECT_EQ(feed->Depart(goes.participant(), Evicted(kWhy)), 1U);
  std::vector<uint64_t> batches{held->batch_index};
  while (const auto batch = stays.Next()) {
    batches.push_back(batch->batch_index);
    stays.Release(*batch, *feed);
  }
  EXPECT_THAT(batches, UnorderedElementsAre(0, 1, 2, 3));
}

TEST_P(FeedEvictTest, EvictedSessionOfAFailedFeedKeepsTheFailure) {
  const auto feed = Make(Spec(8, 1), std::make_shared<NumberDataset>(64, std::set<uint64_t>{60}));
  AttachedClient client(*feed);
  while (const auto batch = client.Next()) client.Release(*batch, *feed);
  ASSERT_EQ(client.state(), FeedState::kFailed);
  feed->Depart(client.participant(), Evicted(kWhy));
  EXPECT_EQ(client.state(), FeedState::kEvicted);
  EXPECT_THAT(std::string(client.page().error_text, client.page().error_bytes), HasSubstr("number 60"));
}

// The trainer takes a batch in the very moment in which it is evicted: one of the two sees the other.
TEST_P(FeedEvictTest, NoBatchIsFilledThatWasTakenWhileEvicting) {
  for (uint64_t round = 0; round < 300; ++round) {
    Open(Sharing::kBroadcast, 0, 1000, 4);
    const auto& feed = feed_;
    PageClient& goes = *first_;
    PageClient& stays = *second_;
    std::atomic<bool> refilled{false};
    std::thread trainer([&] {
      std::vector<BatchDescriptor> held;
      while (const auto batch = goes.Next()) {
        if (held.size() == 2) {
          goes.Release(held.front(), *feed);
          held.erase(held.begin());
        }
        held.push_back(*batch);
      }
      while (!refilled) std::this_thread::yield();
      for (const BatchDescriptor& batch : held)
        EXPECT_EQ(goes.Ids(batch), Expected(*feed, batch.epoch, batch.batch_index)) << "round " << round;
      for (const BatchDescriptor& batch : held) goes.Release(batch, *feed);
    });
    for (uint64_t b = 0; b < round % 7; ++b) stays.Release(*stays.Next(), *feed);
    EXPECT_LE(feed->Depart(goes.participant(), Evicted(kWhy)), 3U);
    for (int i = 0; i < 12; ++i) stays.Release(*stays.Next(), *feed);  // all free slots are filled anew
    refilled = true;
    trainer.join();
  }
}

PF_OVER_ALL_PRODUCERS(FeedEvictTest);

}  // namespace
}  // namespace pinfeed
