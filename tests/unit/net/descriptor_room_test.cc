// SPDX-License-Identifier: Apache-2.0
#include "server/net/descriptor_room.h"

#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(DescriptorRoomTest, KeepsSomeForConnections) {
  EXPECT_OK(CheckDescriptorRoom(256, 128, [] { return 104U; }));
  EXPECT_THAT(
      CheckDescriptorRoom(256, 128, [] { return 105U; }),
      StatusIs(Code::kResourceExhausted,
               AllOf(HasSubstr("105 of the 128"), HasSubstr("16 are reserved"), HasSubstr("LimitNOFILE"))));
  EXPECT_OK(CheckDescriptorRoom(256, 64, [] { return 48U; }));
  EXPECT_FALSE(CheckDescriptorRoom(256, 64, [] { return 49U; }).ok());
  EXPECT_FALSE(CheckDescriptorRoom(256, 8, [] { return 1U; }).ok());
  EXPECT_FALSE(CheckDescriptorRoom(65536, 524288, [] { return 524288U - 71; }).ok());
}

TEST(DescriptorRoomTest, TheLastOnesAreLeftToFiles) {
  EXPECT_FALSE(IsLeftToFiles(59, 64));
  EXPECT_TRUE(IsLeftToFiles(60, 64));
  EXPECT_FALSE(IsLeftToFiles(1048543, 1048576));
  EXPECT_TRUE(IsLeftToFiles(1048544, 1048576));
  EXPECT_FALSE(IsLeftToFiles(1'000'000, UINT64_MAX));
}

TEST(DescriptorRoomTest, CountsOnlyWhereItMatters) {
  int counted = 0;
  const auto count = [&] {
    ++counted;
    return 10U;
  };
  EXPECT_OK(CheckDescriptorRoom(256, 1048576, count));
  EXPECT_OK(CheckDescriptorRoom(256, UINT32_MAX, count));
  EXPECT_EQ(counted, 0);
  EXPECT_OK(CheckDescriptorRoom(256, 1024, count));
  EXPECT_EQ(counted, 1);
}

TEST(UserCountsTest, AUserHasTheLimitAndOneAmountAtMost) {
  UserCounts counts;
  UserCounts::Counted first = counts.TryAdd(1, 10, 10);
  const UserCounts::Counted second = counts.TryAdd(1, 10, 10);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(counts.TryAdd(1, 1, 10), nullptr);
  EXPECT_NE(counts.TryAdd(2, 1, 10), nullptr);
  EXPECT_EQ(counts.Of(1), 20U);
  const auto now = UserCounts::Clock::now();
  EXPECT_EQ(counts.AddBy(1, 1, 10, now + std::chrono::milliseconds(1)), nullptr);
  std::thread reader([&] { first.reset(); });
  EXPECT_NE(counts.AddBy(1, 1, 10, now + std::chrono::minutes(1)), nullptr) << "waits for the reader";
  reader.join();
  EXPECT_EQ(counts.Of(1), 10U);
}

TEST(ConnectionRoomTest, OneUserLeavesHalfToTheOthers) {
  ConnectionRoom room;
  std::vector<ConnectionRoom::Taken> taken;
  for (int i = 0; i < 96; ++i) taken.push_back(room.Take(1, 4, "it takes four", 1024).value());
  EXPECT_THAT(room.Take(1, 4, "it takes four", 1024),
              StatusIs(Code::kResourceExhausted, HasSubstr("have 384 of the daemon's 1024 descriptors")));
  EXPECT_OK(room.Take(2, 4, "it takes four", 1024).status());
  taken.pop_back();
  EXPECT_OK(room.Take(1, 4, "it takes four", 1024).status());
  EXPECT_OK(CheckConnectionRoom(767, "it takes four", 1024));
  EXPECT_THAT(CheckConnectionRoom(768, "it takes four", 1024),
              StatusIs(Code::kResourceExhausted, HasSubstr("three quarters")));
}

}  // namespace
}  // namespace pinfeed
