// SPDX-License-Identifier: Apache-2.0
#include "server/feed/recent_stalls.h"

#include <cmath>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

// A feed in which `cause` is waited for during `part` of each span.
struct Waiting {
  StallTimes sums{};
  RecentStalls recent = {};
  void Go(uint64_t spans, uint64_t span_ns, StallCause cause, double part) {
    for (uint64_t i = 0; i < spans; ++i) {
      sums[static_cast<size_t>(cause)] += static_cast<uint64_t>(part * static_cast<double>(span_ns));
      recent.Add(ExponentialDecay(span_ns), sums);
    }
  }
  double Share(StallCause cause) const { return recent.shares()[static_cast<size_t>(cause)]; }
};

TEST(RecentStallsTest, NothingIsKnownBeforeThereWasTime) {
  Waiting run;
  EXPECT_FALSE(run.recent.known());
  EXPECT_EQ(run.recent.shares(), StallShares{});
  run.Go(1, 0, StallCause::kRead, 1);
  EXPECT_FALSE(run.recent.known());
}

TEST(RecentStallsTest, TheFirstMomentsCountInFull) {
  Waiting run;
  run.Go(10, kSecond / 1000, StallCause::kRead, 0.5);
  EXPECT_TRUE(run.recent.known());
  EXPECT_NEAR(run.Share(StallCause::kRead), 0.5, 1e-9);
}

TEST(RecentStallsTest, AFeedThatChangesItsBoundIsToldByWhatItIsNow) {
  Waiting run;
  run.Go(36'000, kSecond / 10, StallCause::kConsumer, 1);  // an hour
  EXPECT_NEAR(run.Share(StallCause::kConsumer), 1, 1e-9);
  run.Go(300, kSecond / 10, StallCause::kDecode, 0.8);  // 30 s, two time constants
  EXPECT_NEAR(run.Share(StallCause::kConsumer), std::exp(-2.0), 1e-6);
  EXPECT_NEAR(run.Share(StallCause::kDecode), 0.8 * (1 - std::exp(-2.0)), 1e-6);
}

TEST(RecentStallsTest, ItDoesNotMatterHowOftenSomebodyLooks) {
  Waiting often;
  Waiting seldom;
  often.Go(3'600'000, kSecond / 1000, StallCause::kConsumer, 0.9);
  seldom.Go(1, 3600 * kSecond, StallCause::kConsumer, 0.9);
  often.Go(20'000, kSecond / 1000, StallCause::kRead, 0.7);
  seldom.Go(2, 10 * kSecond, StallCause::kRead, 0.7);
  for (const StallCause cause : {StallCause::kConsumer, StallCause::kRead})
    EXPECT_NEAR(often.Share(cause), seldom.Share(cause), 1e-6);
}

}  // namespace
}  // namespace pinfeed
