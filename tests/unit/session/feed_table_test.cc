// SPDX-License-Identifier: Apache-2.0
#include "server/session/feed_table.h"

#include <atomic>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

class FeedTableTest : public FeedTest {
 protected:
  FeedTableTest() : FeedTest(Producer::kNative) { table_.Start(); }
  ~FeedTableTest() override { table_.Stop(); }

  static FeedSpec GroupSpec() {
    FeedSpec spec = Spec(8);
    spec.sharing = Sharing::kBroadcast;
    spec.group = "g";
    return spec;
  }
  FeedTable::Make Maker(const FeedSpec& spec) {
    return [this, spec](uint64_t id) -> Result<std::unique_ptr<Feed>> {
      last_id_ = id - 1;
      return MakeUnshared(spec, std::make_shared<NumberDataset>(100));
    };
  }
  Result<std::shared_ptr<Session>> Join(uid_t uid, const FeedSpec& spec) {
    return table_.Join(uid, spec, Maker(spec));
  }
  void AwaitReclaim() { table_.AwaitReclaim(std::chrono::steady_clock::now() + std::chrono::seconds(30)); }

  FeedTable table_;
};

TEST_F(FeedTableTest, GroupsAreOfOneUserAndOneName) {
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> first, Join(1000, GroupSpec()));
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> same, Join(1000, GroupSpec()));
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> other_user, Join(1001, GroupSpec()));
  EXPECT_EQ(first->feed, same->feed);
  EXPECT_NE(first->feed, other_user->feed);
}

TEST_F(FeedTableTest, FeedThatCannotBeMadeLeavesItsNameFree) {
  const auto refuse = [](uint64_t) -> Result<std::unique_ptr<Feed>> { return NotFound("no such dataset"); };
  EXPECT_THAT(table_.Join(1000, GroupSpec(), refuse), StatusIs(Code::kNotFound));
  FeedSpec other = GroupSpec();
  other.batch_size = 4;
  EXPECT_OK(Join(1000, other));
}

TEST_F(FeedTableTest, WhoWaitsForAFeedThatCannotBeMadeMakesItsOwn) {
  std::promise<void> making;
  std::promise<void> fail;
  auto first = std::async(std::launch::async, [&] {
    return table_.Join(1000, GroupSpec(), [&](uint64_t) -> Result<std::unique_ptr<Feed>> {
      making.set_value();
      fail.get_future().wait();
      return NotFound("no such dataset");
    });
  });
  making.get_future().wait();
  auto second = std::async(std::launch::async, [&] { return Join(1000, GroupSpec()); });
  fail.set_value();
  EXPECT_THAT(first.get(), StatusIs(Code::kNotFound));
  EXPECT_OK(second.get());
}

TEST_F(FeedTableTest, NameIsFreeWhenTheLastLeavesAndMemoryWhenTheLastIsGone) {
  ASSERT_OK_AND_ASSIGN(std::shared_ptr<Session> left, Join(1000, GroupSpec()));
  table_.Depart(*left, {DepartureReason::kHungUp});
  table_.Depart(*left, {DepartureReason::kHungUp});
  FeedSpec other = GroupSpec();
  other.batch_size = 4;
  std::shared_ptr<Session> orphan = std::move(left);
  {
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> next, Join(1000, other));
    EXPECT_NE(next->feed, orphan->feed);
  }
  AwaitReclaim();
  EXPECT_EQ(pool_.used_bytes(), orphan->feed->arena().bytes());
  orphan.reset();
  AwaitReclaim();
  EXPECT_EQ(pool_.used_bytes(), 0U);
}

TEST_F(FeedTableTest, AFeedWhoseWorkersHangHoldsUpTheEndOfNoOther) {
  std::promise<void> reading;
  std::promise<void> answer;
  std::once_flag first;
  const auto make_hanging = [&](uint64_t id) -> Result<std::unique_ptr<Feed>> {
    last_id_ = id - 1;
    return MakeUnshared(Spec(8),
                        std::make_shared<NumberDataset>(100, std::set<uint64_t>{}, [&](uint64_t /*id*/) {
                          std::call_once(first, [&] {
                            reading.set_value();
                            answer.get_future().wait();
                          });
                        }));
  };
  uint64_t hanging_bytes = 0;
  {
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> session, table_.Join(1000, Spec(8), make_hanging));
    hanging_bytes = session->feed->arena().bytes();
    AttachedClient client(*session->feed);
    reading.get_future().wait();
  }
  for (int i = 0; i < 3; ++i) EXPECT_OK(Join(1000, Spec(8)));
  WaitFor([&] { return pool_.used_bytes() == hanging_bytes; });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  table_.AwaitReclaim(deadline);
  EXPECT_LT(std::chrono::steady_clock::now(), deadline);
  EXPECT_EQ(table_.Snapshot().feeds.size(), 1U);
  answer.set_value();
  WaitFor([&] { return pool_.used_bytes() == 0; });
}

// A copy thread, or who looks at all feeds, may have one in its hands when it ends.
TEST_F(FeedTableTest, StopWaitsForWhoeverStillHasAFeed) {
  std::shared_ptr<Feed> held;
  {
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> session, Join(1000, Spec(8)));
    held = table_.All().at(0);
  }
  auto stopping = std::async(std::launch::async, [&] { table_.Stop(); });
  EXPECT_EQ(stopping.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  EXPECT_NE(pool_.used_bytes(), 0U);
  std::optional<OngoingOperation> at;
  while (!at || at->what != "waiting for the last users of feed 1") at = table_.CurrentOperation();
  held.reset();
  stopping.get();
  EXPECT_FALSE(table_.CurrentOperation());
  EXPECT_EQ(pool_.used_bytes(), 0U);
}

TEST_F(FeedTableTest, TotalsKeepWhatEndedFeedsDid) {
  uint64_t batches = 0;
  {
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> session, Join(1000, Spec(8)));
    AttachedClient client(*session->feed);
    for (int i = 0; i < 5; ++i) client.Release(*client.Next(), *session->feed);
    batches = table_.Snapshot().totals.batches;
    EXPECT_GE(batches, 5U);
  }
  AwaitReclaim();
  const FeedTable::View after = table_.Snapshot();
  EXPECT_TRUE(after.feeds.empty());
  EXPECT_EQ(after.totals.feeds, 1U);
  EXPECT_GE(after.totals.batches, batches);
}

TEST_F(FeedTableTest, WhoeverLetsGoLastDoesNotDestroyTheFeed) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<std::thread::id> ended;
    const auto make = [&](uint64_t id) -> Result<std::unique_ptr<Feed>> {
      last_id_ = id - 1;
      const std::shared_ptr<int> tells(new int, [&ended](int* token) {
        ended = std::this_thread::get_id();
        delete token;
      });
      return MakeUnshared(Spec(8), std::make_shared<NumberDataset>(100, std::set<uint64_t>{},
                                                                   [tells](uint64_t /*sample*/) {}));
    };
    ASSERT_OK_AND_ASSIGN(std::shared_ptr<Session> session, table_.Join(1000, Spec(8), make));
    std::vector<std::shared_ptr<Feed>> shares = table_.All();
    session.reset();
    std::thread user([&] { shares.clear(); });
    const std::thread::id users = user.get_id();
    user.join();
    AwaitReclaim();
    EXPECT_NE(ended.load(), std::thread::id());
    EXPECT_NE(ended.load(), std::this_thread::get_id());
    EXPECT_NE(ended.load(), users);
  }
}

}  // namespace
}  // namespace pinfeed
