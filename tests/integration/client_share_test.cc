// SPDX-License-Identifier: Apache-2.0
// Members of a broadcast on one GPU: one decodes, and the others fetch its batches.
#include <algorithm>
#include <optional>
#include <thread>

#include "common/os/start_thread.h"
#include "tests/integration/client_decode_fixture.h"

namespace pinfeed {
namespace {

class ClientShareTest : public ClientDecodeTest {
 protected:
  struct Member {
    std::shared_ptr<CpuDecodeEngine> engine;
    std::unique_ptr<Feed> feed;
  };
  Member Join(const std::string& more, const std::string& gpu = "GPU-of-the-test",
              const std::optional<Cursor>& cursor = std::nullopt) {
    const auto engine = std::make_shared<CpuDecodeEngine>();
    FeedOptions options = Options(more + kGroup + kGpu, engine);
    options.session.request.gpu_uuid = gpu;
    options.session.request.cursor = cursor;
    return {engine, Feed::Open(options).value()};
  }
  void ExpectBatches(std::vector<Member*> members, Feed& cpu, int batches) {
    for (int i = 0; i < batches; ++i) {
      ASSERT_OK_AND_ASSIGN(const Tensors expected, Next(cpu));
      for (Member* const member : members) {
        ASSERT_OK_AND_ASSIGN(const Tensors seen, Next(*member->feed));
        ASSERT_EQ(seen, expected) << i;
      }
    }
  }

  static void Take(Feed& feed, int batches, std::vector<Tensors>& taken) {
    for (int i = 0; i < batches; ++i) {
      Result<Tensors> batch = Next(feed);
      EXPECT_OK(batch);
      if (!batch.ok()) return;
      taken.push_back(*std::move(batch));
    }
  }

  static constexpr char kGroup[] = R"(, "sharing": "BROADCAST", "group": "g")";
  static constexpr char kTwo[] = R"(, "group_size": 2)";
};

TEST_F(ClientShareTest, OneMemberDecodesForAllOnItsGpu) {
  const size_t threads = CountThreads();
  const std::string more =
      R"(, "group_size": 3, "sample_ids": true, "valid": true, "sample_path": true, "on_bad_sample": "ZERO")";
  {
    Member first = Join(more);
    Member second = Join(more);
    Member third = Join(more);
    const auto cpu = Open(more + R"(, "group_size": 1)");
    ExpectBatches({&first, &second, &third}, *cpu, 20);
    EXPECT_GT(first.engine->decoded(), 100U);
    EXPECT_EQ(second.engine->decoded(), 0U);
    EXPECT_EQ(third.engine->decoded(), 0U);
    EXPECT_EQ(second.engine->alive(), DecodedBatches::kRing + 2) << "and a decoder with memory in reserve";
    EXPECT_EQ(Log(), "");
  }
  EXPECT_EQ(CountThreads(), threads);
}

TEST_F(ClientShareTest, MembersOnOtherGpusDecodeForThemselves) {
  Member first = Join(kTwo);
  Member second = Join(kTwo, "GPU-another");
  const auto cpu = Open();
  ExpectBatches({&first, &second}, *cpu, 5);
  EXPECT_GT(first.engine->decoded(), 0U);
  EXPECT_GT(second.engine->decoded(), 0U);
}

TEST_F(ClientShareTest, DecoderThatLeavesHandsOverToEachReader) {
  Member first = Join(kTwo);
  Member second = Join(kTwo);
  const auto cpu = Open();
  ExpectBatches({&first, &second}, *cpu, 5);
  first.feed.reset();
  EXPECT_EQ(first.engine->alive(), 0U);
  ExpectBatches({&second}, *cpu, 20);
  EXPECT_GT(second.engine->decoded(), 100U);
  EXPECT_THAT(Log(), HasSubstr("on, this process decodes images itself: the link to the member of its "
                               "broadcast that decoded them has ended: the other process has ended it"));
  // It decodes for those that come now.
  Member third = Join(kTwo);
  std::vector<Tensors> seen;
  std::thread other = StartThread("other", [&] {
    Take(*third.feed, 10, seen);
    third.feed.reset();  // the group waits for it no more
  });
  std::vector<Tensors> all;
  Take(*second.feed, 40, all);
  other.join();
  ASSERT_EQ(seen.size(), 10U);
  const auto begin = std::ranges::find(all, seen.front());
  ASSERT_GE(all.end() - begin, 10);
  EXPECT_TRUE(std::equal(seen.begin(), seen.end(), begin));
  EXPECT_EQ(third.engine->decoded(), 0U);
}

TEST_F(ClientShareTest, ReaderThatLeavesIsWaitedForNoMore) {
  Member first = Join(kTwo);
  Member second = Join(kTwo);
  const auto cpu = Open();
  ExpectBatches({&first, &second}, *cpu, 3);
  second.feed.reset();
  EXPECT_EQ(second.engine->alive(), 0U);
  ExpectBatches({&first}, *cpu, 20);
}

TEST_F(ClientShareTest, BatchesThatAMemberDoesNotWriteAreThereForTheOthers) {
  for (const int skipping : {0, 1}) {
    Member first = Join(kTwo);
    Member second = Join(kTwo);
    const auto cpu = Open();
    Member& skips = skipping == 0 ? first : second;
    Member& takes = skipping == 0 ? second : first;
    for (int i = 0; i < 20; ++i) {
      ASSERT_OK_AND_ASSIGN(Batch* const batch, skips.feed->Next(std::chrono::seconds(30)));
      batch->Release();
      ExpectBatches({&takes}, *cpu, 1);
    }
    EXPECT_EQ(second.engine->decoded(), 0U);
  }
}

TEST_F(ClientShareTest, BatchIsKeptForAReaderThatIsLate) {
  const std::string slots = std::string(kTwo) + R"(, "slots": 16)";
  Member first = Join(slots);
  Member second = Join(slots);
  const auto cpu = Open();
  second.engine->HoldWrites(true);  // so that its ring fills
  for (uint32_t i = 0; i < DecodedBatches::kRing; ++i) ASSERT_OK(Next(*second.feed));
  for (uint32_t i = 0; i < 2 * DecodedBatches::kRing; ++i) ASSERT_OK(Next(*first.feed));
  EXPECT_THAT(first.feed->Next(std::chrono::milliseconds(100)), StatusIs(Code::kDeadlineExceeded));
  second.engine->HoldWrites(false);
  ASSERT_OK(Next(*first.feed));
  for (uint32_t i = 0; i < DecodedBatches::kRing; ++i) ASSERT_OK(Next(*cpu));
  ExpectBatches({&second}, *cpu, 5);
  EXPECT_EQ(second.engine->decoded(), 0U);
}

TEST_F(ClientShareTest, DaemonThatIsKilledLinksThemAnew) {
  Member first = Join(kTwo);
  Member second = Join(kTwo);
  const auto cpu = Open();
  ExpectBatches({&first, &second}, *cpu, 3);
  daemon_->Kill();
  Serve();
  // Both have to be on their way back for the group to be complete.
  std::vector<Tensors> seen;
  std::thread other = StartThread("other", [&] { Take(*second.feed, 12, seen); });
  std::vector<Tensors> own;
  Take(*first.feed, 12, own);
  other.join();
  std::vector<Tensors> expected;
  Take(*cpu, 12, expected);
  EXPECT_EQ(own, expected);
  EXPECT_EQ(seen, expected);
}

TEST_F(ClientShareTest, MemberWithALaterCursorIsNotWaitedForBefore) {
  const auto cpu = Open();
  Member first = Join(R"(, "group_size": 2, "slots": 3)");
  Cursor third_epoch = first.feed->cursor();
  third_epoch.epoch = 2;
  Member later = Join(R"(, "group_size": 2, "slots": 3)", "GPU-of-the-test", third_epoch);
  ExpectBatches({&first}, *cpu, 16);  // two epochs
  ExpectBatches({&first, &later}, *cpu, 6);
}

}  // namespace
}  // namespace pinfeed
