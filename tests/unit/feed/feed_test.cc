// SPDX-License-Identifier: Apache-2.0
#include "server/feed/feed.h"

#include <algorithm>

#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

std::vector<uint64_t> Sorted(std::vector<uint64_t> ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

// I2 and I3: whole batches, each once, in the sampler's order, over epoch borders, although samples take
// unequal times.
TEST_P(FeedTest, PublishesWholeBatchesOnceAndInOrder) {
  const auto uneven = [](uint64_t id) {
    for (uint64_t i = 0; i < id % 7; ++i) std::this_thread::yield();
  };
  const auto feed = Make(Spec(8), std::make_shared<NumberDataset>(50, std::set<uint64_t>{}, uneven));
  AttachedClient client(*feed, Sampler::Start{});
  uint64_t sequence = 0;
  for (uint64_t epoch = 0; epoch < 40; ++epoch) {
    for (uint64_t b = 0; b < feed->sampler().batches_per_epoch(); ++b) {
      const auto batch = client.Next();
      ASSERT_TRUE(batch.has_value());
      EXPECT_EQ(batch->sequence, sequence++);
      EXPECT_EQ(batch->epoch, epoch);
      EXPECT_EQ(batch->batch_index, b);
      EXPECT_EQ((batch->flags & kFlagLastOfEpoch) != 0, b + 1 == feed->sampler().batches_per_epoch());
      EXPECT_EQ(client.Ids(*batch), Expected(*feed, epoch, b));
      client.Release(*batch, *feed);
    }
  }
}

// Endless as it is: the number of its epochs does not wrap.
TEST_P(FeedTest, EndsBehindTheLastEpochThereCanBe) {
  const auto feed = Make(Spec(8), std::make_shared<NumberDataset>(24));
  AttachedClient client(*feed, Sampler::Start{kMaxEpoch, 1});
  for (uint64_t b = 1; b < 3; ++b) {
    const auto batch = client.Next();
    ASSERT_TRUE(batch.has_value());
    EXPECT_EQ(batch->epoch, kMaxEpoch);
    EXPECT_EQ(batch->batch_index, b);
    client.Release(*batch, *feed);
  }
  EXPECT_FALSE(client.Next().has_value());
  EXPECT_EQ(client.state(), FeedState::kEnded);
}

// A trainer that finished is started again.
TEST_P(FeedTest, EndsAtOnceForACursorBehindItsEpochs) {
  const auto feed = Make(Spec(8, 2), std::make_shared<NumberDataset>(24));
  AttachedClient client(*feed, Sampler::Start{5, 1});
  EXPECT_FALSE(client.Next().has_value());
  EXPECT_EQ(client.state(), FeedState::kEnded);
}

// I1: with every slot in the client's hands nothing is written, however often the feed is asked to go on.
TEST_P(FeedTest, NeverWritesASlotThatIsStillHeld) {
  const auto feed = Make(Spec(8), std::make_shared<NumberDataset>(1000), 3);
  AttachedClient client(*feed, Sampler::Start{});
  std::vector<BatchDescriptor> held;
  for (uint64_t b = 0; b < 3; ++b) held.push_back(*client.Next());
  for (int i = 0; i < 1000; ++i) feed->ReadReleases();
  EXPECT_EQ(feed->Snapshot().slots_lent, 3U);
  EXPECT_EQ(feed->Snapshot().slots_filling, 0U);
  for (uint64_t b = 0; b < 3; ++b) EXPECT_EQ(client.Ids(held[b]), Expected(*feed, 0, b));
  EXPECT_EQ(client.ready(), 0U);

  client.Release(held[1], *feed);  // out of order: only that slot is used again
  const auto next = client.Next();
  EXPECT_EQ(next->slot, held[1].slot);
  EXPECT_EQ(next->generation, held[1].generation + 1);
  EXPECT_EQ(client.Ids(held[0]), Expected(*feed, 0, 0));
  EXPECT_EQ(client.Ids(held[2]), Expected(*feed, 0, 2));
}

// I6: only the one right generation releases a slot; everything else is counted and ignored.
TEST_P(FeedTest, WrongReleaseWordsAreIgnoredAndCounted) {
  const auto feed = Make(Spec(8), std::make_shared<NumberDataset>(1000), 3);
  AttachedClient client(*feed, Sampler::Start{});
  std::vector<BatchDescriptor> held;
  for (int b = 0; b < 3; ++b) held.push_back(*client.Next());
  for (const uint64_t lie : {uint64_t{0}, held[0].generation - 1, held[0].generation + 1, UINT64_MAX}) {
    for (ReleaseWord& word : client.words().slots) word.generation.store(lie);
    feed->ReadReleases();
    EXPECT_EQ(feed->Snapshot().slots_lent, 3U) << lie;
  }
  EXPECT_EQ(feed->Snapshot().ignored_releases,
            6U);  // two lies differ from what stood there, in three lent slots
  client.Release(held[0], *feed);
  EXPECT_TRUE(client.Next().has_value());
}

// I4: the bytes depend on spec and seed only.
TEST_P(FeedTest, SameBytesForAnyWorkerCountDepthAndRestartPoint) {
  CheckSameBytes(Spec(8), std::make_shared<NumberDataset>(50));
}

TEST_P(FeedTest, EndsAfterTheEpochsAskedFor) {
  const auto feed = Make(Spec(8, 2), std::make_shared<NumberDataset>(50));
  AttachedClient client(*feed, Sampler::Start{});
  uint64_t batches = 0;
  while (const auto batch = client.Next()) {
    ++batches;
    client.Release(*batch, *feed);
  }
  EXPECT_EQ(batches, 2 * feed->sampler().batches_per_epoch());
  EXPECT_EQ(client.state(), FeedState::kEnded);
}

TEST_P(FeedTest, BadSampleFailsTheFeedAfterTheBatchesBeforeIt) {
  FeedSpec spec = Spec(8);
  spec.order = Order::kSequential;
  const auto feed = Make(spec, std::make_shared<NumberDataset>(1000, std::set<uint64_t>{18, 21}), 8);
  AttachedClient client(*feed, Sampler::Start{});
  WaitFor([&] { return client.state() == FeedState::kFailed; });
  for (uint64_t b = 0; b < 2; ++b) EXPECT_EQ(client.Ids(*client.Next()), Expected(*feed, 0, b));
  EXPECT_FALSE(client.Next().has_value());
  const std::string text(client.page().error_text, client.page().error_bytes);
  EXPECT_THAT(text, HasSubstr("number 18"));
  EXPECT_THAT(text, HasSubstr("batch 2 of epoch 0"));
  EXPECT_EQ(feed->Snapshot().state, "failed");
  EXPECT_EQ(feed->Snapshot().bad_samples, 1U);
}

TEST_P(FeedTest, SkippedSamplesLeaveAShorterBatchInOrder) {
  FeedSpec spec = Spec(8, 1);
  spec.order = Order::kSequential;
  spec.on_bad_sample = OnBadSample::kSkip;
  std::set<uint64_t> bad = {0, 3, 7, 10};
  for (uint64_t id = 16; id < 24; ++id) bad.insert(id);  // the whole third batch
  const auto feed = Make(spec, std::make_shared<NumberDataset>(32, bad));
  AttachedClient client(*feed, Sampler::Start{});
  std::vector<std::vector<uint64_t>> got;
  while (const auto batch = client.Next()) {
    got.push_back(client.Ids(*batch));
    EXPECT_EQ(batch->samples + batch->skipped, 8U);
    client.Release(*batch, *feed);
  }
  EXPECT_EQ(got, (std::vector<std::vector<uint64_t>>{
                     {1, 2, 4, 5, 6}, {8, 9, 11, 12, 13, 14, 15}, {}, {24, 25, 26, 27, 28, 29, 30, 31}}));
  EXPECT_EQ(feed->Snapshot().bad_samples, bad.size());
  EXPECT_THAT(feed->Snapshot().last_bad_samples.back().reason, HasSubstr("is bad"));
}

TEST_P(FeedTest, FailsAfterAWholeEpochOfBadSamples) {
  FeedSpec spec = Spec(8);
  spec.order = Order::kSequential;
  std::set<uint64_t> bad;
  for (uint64_t id = 0; id < 32; ++id) bad.insert(id);
  for (const OnBadSample choice : {OnBadSample::kSkip, OnBadSample::kZero}) {
    spec.on_bad_sample = choice;
    const auto feed = Make(spec, std::make_shared<NumberDataset>(32, bad));
    AttachedClient client(*feed, Sampler::Start{});
    uint64_t batches = 0;
    while (const auto batch = client.Next()) {
      ++batches;
      client.Release(*batch, *feed);
    }
    EXPECT_EQ(batches, 3U)
        << "the epoch's last batch is the error, or a trainer of one epoch would not see it";
    EXPECT_EQ(client.state(), FeedState::kFailed);
    const std::string text(client.page().error_text, client.page().error_bytes);
    EXPECT_THAT(text, HasSubstr(choice == OnBadSample::kSkip ? "on_bad_sample skip" : "on_bad_sample zero"));
    EXPECT_THAT(text, HasSubstr("no good sample"));
    EXPECT_THAT(text, HasSubstr("number 0"));
  }
}

TEST_P(FeedTest, ZeroedSamplesKeepTheirPlace) {
  FeedSpec spec = Spec(4, 1);
  spec.order = Order::kSequential;
  spec.on_bad_sample = OnBadSample::kZero;
  const auto feed = Make(spec, std::make_shared<NumberDataset>(4, std::set<uint64_t>{2}));
  AttachedClient client(*feed, Sampler::Start{});
  const auto batch = client.Next();
  EXPECT_EQ(client.Ids(*batch), (std::vector<uint64_t>{0, 1, 0, 3}));
  EXPECT_EQ(feed->Snapshot().bad_samples, 1U);
}

TEST_P(FeedTest, DrainPublishesWhatIsUnderWayAndSaysSo) {
  const auto feed = Make(Spec(8), std::make_shared<NumberDataset>(1000));
  AttachedClient client(*feed, Sampler::Start{});
  feed->Drain();
  WaitFor([&] { return client.state() == FeedState::kDraining; });
  uint64_t b = 0;
  while (const auto batch = client.Next()) EXPECT_EQ(client.Ids(*batch), Expected(*feed, 0, b++));
  EXPECT_THAT(feed->Attach(client.participant()), StatusIs(Code::kUnavailable));
}

TEST_P(FeedTest, QueueGivesEachBatchToOneAndPassesOnWhatADeadOneHeld) {
  FeedSpec spec = Spec(10, 1);
  spec.sharing = Sharing::kQueue;
  spec.group_size = 2;
  const auto feed = Make(spec, std::make_shared<NumberDataset>(200), 4);
  AttachedClient dies(*feed);
  AttachedClient lives(*feed);
  ASSERT_TRUE(dies.Next().has_value());  // taken, never released
  feed->Depart(dies.participant(), Ended());
  std::vector<uint64_t> seen;
  while (const auto batch = lives.Next()) {
    const std::vector<uint64_t> ids = lives.Ids(*batch);
    seen.insert(seen.end(), ids.begin(), ids.end());
    lives.Release(*batch, *feed);
  }
  std::vector<uint64_t> all(200);
  for (uint64_t i = 0; i < all.size(); ++i) all[i] = i;
  EXPECT_EQ(Sorted(seen), all);
}

// After a restart of the daemon: each member comes back with the cursor behind the last batch it took, in any
// order. What lies behind the earliest is given out again.
TEST_P(FeedTest, QueueGoesBackForMembersThatWereBehind) {
  FeedSpec spec = Spec(10, 1);
  spec.sharing = Sharing::kQueue;
  const auto feed = Make(spec, std::make_shared<NumberDataset>(200), 3);
  std::vector<std::unique_ptr<AttachedClient>> members;
  for (const uint64_t start : {12U, 9U, 4U, 6U, 15U})  // with 3 slots, batches 12 to 14 are lent by then
    members.push_back(std::make_unique<AttachedClient>(*feed, Sampler::Start{0, start}));
  std::vector<uint64_t> batches;
  while (batches.size() < 16) {
    for (const auto& member : members) {
      if (member->ready() == 0) continue;
      const auto batch = member->Next();
      EXPECT_EQ(member->Ids(*batch), Expected(*feed, 0, batch->batch_index));
      batches.push_back(batch->batch_index);
      member->Release(*batch, *feed);
    }
  }
  EXPECT_EQ(Sorted(batches),
            (std::vector<uint64_t>{4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}));
  for (const auto& member : members) EXPECT_FALSE(member->Next().has_value());
}

TEST_P(FeedTest, TellsWhatEachSessionHas) {
  FeedSpec spec = Spec(8);
  spec.sharing = Sharing::kBroadcast;
  spec.group_size = 2;
  const auto feed = Make(spec, std::make_shared<NumberDataset>(1000), 3);
  AttachedClient honest(*feed);
  AttachedClient liar(*feed);
  for (int i = 0; i < 3; ++i) honest.Release(*honest.Next(), *feed);
  liar.words().slots[liar.Next()->slot].generation.store(99);
  feed->ReadReleases();
  EXPECT_EQ(feed->SnapshotOf(honest.participant()).slots_lent, 0U);
  EXPECT_EQ(feed->SnapshotOf(honest.participant()).ignored_releases, 0U);
  EXPECT_EQ(feed->SnapshotOf(liar.participant()).slots_lent, 3U);
  EXPECT_EQ(feed->SnapshotOf(liar.participant()).ignored_releases, 1U);
  feed->Depart(honest.participant(), Ended());
  feed->Depart(liar.participant(), Ended());
  EXPECT_EQ(feed->SnapshotOf(liar.participant()).slots_lent, 0U);
}

// I7: whatever a session was doing when it left, every slot is free again and the memory is back.
TEST_P(FeedTest, DetachAtAnyPointGivesEverythingBack) {
  for (uint64_t taken = 0; taken < 12; ++taken) {
    const auto feed = Make(Spec(8), std::make_shared<NumberDataset>(1000));
    AttachedClient client(*feed, Sampler::Start{});
    for (uint64_t i = 0; i < taken; ++i) {
      const auto batch = client.Next();
      if (i % 3 != 0 || i + 3 < taken) client.Release(*batch, *feed);
    }
    EXPECT_EQ(feed->Depart(client.participant(), Ended()), 0U);
    StopAndWait(*feed);
    EXPECT_EQ(feed->Snapshot().slots_free, 4U) << "after " << taken;
  }
  EndFeeds();
  EXPECT_EQ(pool_.used_bytes(), 0U);
}

TEST_P(FeedTest, SnapshotAddsUp) {
  const auto feed = Make(Spec(8, 1), std::make_shared<NumberDataset>(50));
  AttachedClient client(*feed, Sampler::Start{});
  while (const auto batch = client.Next()) client.Release(*batch, *feed);
  const FeedSnapshot snapshot = feed->Snapshot();
  EXPECT_EQ(snapshot.batches, 7U);
  EXPECT_EQ(snapshot.samples, 50U);
  EXPECT_EQ(snapshot.bytes, 50 * NumberDataset::kNumbers * sizeof(int64_t));
  EXPECT_EQ(snapshot.state, "ended");
  EXPECT_GT(snapshot.running_ns, 0U);
  EXPECT_LE(snapshot.full_ns, snapshot.running_ns);
}

PF_OVER_ALL_PRODUCERS(FeedTest);

}  // namespace
}  // namespace pinfeed
