// SPDX-License-Identifier: Apache-2.0
#include "server/cache/dataset_uses.h"

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using namespace std::chrono_literals;

TEST(FeedUsesTest, AFeedThatStandsUsesItsSamplesLater) {
  const FeedSpec spec{.batch_size = 1, .order = Order::kSequential};
  FeedUses feed(spec, 100000);
  const auto begin = FeedUses::Clock::time_point();
  feed.At({0, 0}, begin);
  feed.At({0, 1000}, begin + 10s);
  EXPECT_NEAR(feed.SecondsUntil(1100, begin + 10s), 1.0, 0.02);
  EXPECT_NEAR(feed.SecondsUntil(1100, begin + 1h), 3591.0, 0.02);
}

TEST(FeedUsesTest, APauseDoesNotCountForLong) {
  const FeedSpec spec{.batch_size = 1, .order = Order::kSequential};
  FeedUses feed(spec, 100000);
  auto now = FeedUses::Clock::time_point();
  feed.At({0, 0}, now);
  feed.At({0, 1}, now += 40s);
  for (uint64_t i = 1; i <= 20; ++i) feed.At({0, 100 * i}, now += 1s);
  EXPECT_NEAR(feed.SecondsUntil(2100, now), 1.0, 0.02);
}

}  // namespace
}  // namespace pinfeed
