// SPDX-License-Identifier: Apache-2.0
// What a feed says its trainers, and it, waited for.
#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

constexpr uint64_t kWhileNs = 5'000'000;

uint64_t Of(const StallTimes& stall, StallCause cause) {
  return stall[static_cast<size_t>(cause)];
}

// Host memory behind a copy that takes until Finish.
class SlowArena final : public ArenaOverHost {
 public:
  using ArenaOverHost::ArenaOverHost;
  Backend backend() const override { return Backend::kVmmFd; }  // which copies
  void Deliver(const Piece& piece, const SlotRange& landing, Done done) override PF_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (!finish_) {
        waiting_.push_back(std::move(done));
        return;
      }
    }
    memory().Deliver(piece, landing, std::move(done));
  }
  void Finish() PF_EXCLUDES(mutex_) {
    std::vector<Done> waiting;
    {
      const MutexLock lock(mutex_);
      finish_ = true;
      waiting.swap(waiting_);
    }
    for (const Done& done : waiting) done(OkStatus(), {});
  }

 private:
  Mutex mutex_;
  bool finish_ PF_GUARDED_BY(mutex_) = false;
  std::vector<Done> waiting_ PF_GUARDED_BY(mutex_);
};

class FeedStallTest : public FeedPairTest {
 protected:
  FeedStallTest() : FeedPairTest(Producer::kNative) {}
  static void BeginToWait(const PageClient& client) {
    client.words().waiting_since_ns.store(
        static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  }
  // Until the feed has run for a while longer than now.
  static void LetRun(Feed& feed) {
    const uint64_t start = feed.Snapshot().running_ns;
    WaitFor([&] { return feed.Snapshot().running_ns >= start + kWhileNs; });
  }
};

TEST_F(FeedStallTest, TrainerThatWaitsForASlowSourceIsStalledByReading) {
  std::atomic<bool> open{false};
  std::atomic<uint32_t> reading{0};
  const auto feed = Make(Spec(8), std::make_shared<NumberDataset>(1000, std::set<uint64_t>{}, [&](uint64_t) {
                           reading.fetch_add(1);
                           while (!open.load()) std::this_thread::yield();
                         }));
  PageClient client(*feed);
  BeginToWait(client);
  ASSERT_OK(feed->Attach(client.From(Sampler::Start{})));
  WaitFor([&] { return reading.load() == workers_->threads(); });
  LetRun(*feed);
  EXPECT_EQ(feed->Snapshot().slot_states, "wwww");
  const auto opened = std::chrono::steady_clock::now();
  open.store(true);
  ASSERT_TRUE(client.Next().has_value());
  WaitFor([&] { return feed->Snapshot().slots_lent == 4; });
  const FeedSnapshot snapshot = feed->Snapshot();
  EXPECT_GE(Of(snapshot.stall_ns, StallCause::kRead), kWhileNs);
  EXPECT_EQ(Of(snapshot.stall_ns, StallCause::kDecode), 0U) << "nothing is decoded";
  const std::chrono::nanoseconds since = std::chrono::steady_clock::now() - opened;
  EXPECT_LE(Of(snapshot.stall_ns, StallCause::kCopy), static_cast<uint64_t>(since.count()))
      << "before that nothing was there to publish";
  EXPECT_GE(Of(feed->SnapshotOf(client.participant()).stall_ns, StallCause::kRead), kWhileNs);
  EXPECT_EQ(snapshot.filling.total(), 4U);
  EXPECT_GE(snapshot.filling.sum_ns, 4 * kWhileNs);
}

TEST_F(FeedStallTest, FeedWithoutAFreeSlotIsStalledByItsConsumer) {
  const auto feed = Make(Spec(8), std::make_shared<NumberDataset>(1000));
  AttachedClient client(*feed, Sampler::Start{});
  WaitFor([&] { return feed->Snapshot().slots_lent == 4; });
  LetRun(*feed);
  const FeedSnapshot snapshot = feed->Snapshot();
  EXPECT_EQ(snapshot.slot_states, "llll");
  EXPECT_GE(Of(snapshot.stall_ns, StallCause::kConsumer), kWhileNs);
  EXPECT_EQ(snapshot.bound_on, "consumer");
  const ParticipantSnapshot session = feed->SnapshotOf(client.participant());
  EXPECT_GE(Of(session.stall_ns, StallCause::kConsumer), kWhileNs);
  EXPECT_GE(session.oldest_lease_ns, kWhileNs);
  EXPECT_EQ(snapshot.lent.total(), 0U);
  for (int i = 0; i < 4; ++i) client.Release(*client.Next(), *feed);
  WaitFor([&] { return feed->Snapshot().lent.total() >= 4; });
  EXPECT_GE(feed->Snapshot().lent.sum_ns, 4 * kWhileNs);
}

TEST_F(FeedStallTest, ABatchAgesFromWhenItIsTakenAndThoseBehindItFromThenToo) {
  const auto feed = Make(Spec(8), std::make_shared<NumberDataset>(1000));
  AttachedClient client(*feed, Sampler::Start{});
  WaitFor([&] { return feed->Snapshot().slots_lent == 4; });
  const auto age = [&] {
    (void)feed->Snapshot();  // looks at what the client has taken
    return std::chrono::nanoseconds(feed->SnapshotOf(client.participant()).oldest_lease_ns);
  };
  LetRun(*feed);
  const auto published = std::chrono::steady_clock::now() - age();
  const BatchDescriptor first = *client.Next();
  const auto just_taken = age();
  EXPECT_LT(just_taken,
            std::chrono::steady_clock::now() - published - std::chrono::nanoseconds(kWhileNs / 2));
  LetRun(*feed);
  EXPECT_GE(age().count(), kWhileNs) << "it is held";
  const auto before_next = std::chrono::steady_clock::now();
  const BatchDescriptor second = *client.Next();
  EXPECT_GE(age().count(), kWhileNs) << "the first one is held still";
  client.Release(first, *feed);
  const auto of_second = age();
  EXPECT_LE(of_second, std::chrono::steady_clock::now() - before_next);
  client.Release(second, *feed);
}

TEST_F(FeedStallTest, SharerThatGivesItsBatchesBackIsNotWhatTheFeedWaitsFor) {
  Open(Sharing::kBroadcast, 0, 1000, 4);
  const auto& feed = feed_;
  PageClient& slow = *first_;
  PageClient& fast = *second_;
  for (int i = 0; i < 4; ++i) fast.Release(*fast.Next(), *feed);
  feed->ReadReleases();
  const uint64_t before = Of(feed->SnapshotOf(fast.participant()).stall_ns, StallCause::kConsumer);
  LetRun(*feed);
  EXPECT_GE(Of(feed->SnapshotOf(slow.participant()).stall_ns, StallCause::kConsumer), kWhileNs);
  EXPECT_EQ(Of(feed->SnapshotOf(fast.participant()).stall_ns, StallCause::kConsumer), before);
}

// Also before the feed has looked at what it gave back: nobody rings for a slot that others still hold.
TEST_F(FeedStallTest, SharerThatWaitsForAnotherIsStalledByItsGroup) {
  Open(Sharing::kBroadcast, 0, 1000, 4);
  const auto& feed = feed_;
  PageClient& slow = *first_;
  PageClient& fast = *second_;
  WaitFor([&] { return feed->Snapshot().slot_states == "llll"; });
  for (int i = 0; i < 4; ++i) {
    const BatchDescriptor batch = *fast.Next();
    fast.words().slots[batch.slot].generation.store(batch.generation);
  }
  BeginToWait(fast);
  const uint64_t start = feed->Snapshot().running_ns;
  const StallTimes before = feed->SnapshotOf(fast.participant()).stall_ns;
  LetRun(*feed);
  const uint64_t elapsed = feed->Snapshot().running_ns - start;
  const StallTimes after = feed->SnapshotOf(fast.participant()).stall_ns;
  EXPECT_GE(Of(after, StallCause::kGroup) - Of(before, StallCause::kGroup), elapsed);
  EXPECT_EQ(Of(after, StallCause::kConsumer), Of(before, StallCause::kConsumer));
  const ParticipantSnapshot other = feed->SnapshotOf(slow.participant());
  EXPECT_GE(Of(other.stall_ns, StallCause::kConsumer), elapsed);
  EXPECT_EQ(Of(other.stall_ns, StallCause::kGroup), 0U);
  EXPECT_EQ(Of(feed->Snapshot().stall_ns, StallCause::kGroup), 0U) << "the feed waits for its consumers";
  ASSERT_TRUE(other.recent.has_value());
  EXPECT_GT((*other.recent)[static_cast<size_t>(StallCause::kConsumer)], 0.0);
}

TEST_F(FeedStallTest, TrainerThatWaitsForACopyIsStalledByIt) {
  SlowArena* arena = nullptr;
  Feed& feed = *Make(Spec(8), std::make_shared<NumberDataset>(1000), 4, [&](auto memory) {
    auto slow = std::make_unique<SlowArena>(std::move(memory));
    arena = slow.get();
    return slow;
  });
  PageClient client(feed);
  BeginToWait(client);
  ASSERT_OK(feed.Attach(client.From(Sampler::Start{})));
  WaitFor([&] { return feed.Snapshot().slot_states == "cccc"; });
  const StallTimes before = feed.Snapshot().stall_ns;
  LetRun(feed);
  const FeedSnapshot snapshot = feed.Snapshot();
  EXPECT_GE(Of(snapshot.stall_ns, StallCause::kCopy) - Of(before, StallCause::kCopy), kWhileNs);
  EXPECT_EQ(Of(snapshot.stall_ns, StallCause::kConsumer), Of(before, StallCause::kConsumer));
  EXPECT_GE(Of(feed.SnapshotOf(client.participant()).stall_ns, StallCause::kCopy), kWhileNs);
  arena->Finish();
  ASSERT_TRUE(client.Next().has_value());
}

// A trainer that lies about its waiting changes no more than the time there was, and only upwards.
TEST_F(FeedStallTest, LiesAboutWaitingAreHeldWithinTheTime) {
  const auto feed = Make(Spec(8), std::make_shared<NumberDataset>(1000));
  AttachedClient client(*feed, Sampler::Start{});
  uint64_t before = 0;
  for (const uint64_t lie : {UINT64_MAX, uint64_t{0}, UINT64_MAX - 1, uint64_t{1}}) {
    client.words().wait_ns.store(lie);
    client.words().waiting_since_ns.store(lie);
    client.Release(*client.Next(), *feed);
    const FeedSnapshot snapshot = feed->Snapshot();
    uint64_t sum = 0;
    for (const uint64_t ns : snapshot.stall_ns) sum += ns;
    EXPECT_LE(sum, snapshot.running_ns);
    EXPECT_GE(sum, before);
    before = sum;
  }
}

}  // namespace
}  // namespace pinfeed
