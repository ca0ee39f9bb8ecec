// SPDX-License-Identifier: Apache-2.0
#include "server/feed/stall.h"

#include "common/base/histogram.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(StallSumsTest, DeferredWaitingIsSplitAsTheWorkersTimeWas) {
  StallSums sums;
  sums.Defer(1000);
  EXPECT_EQ(sums.sums(), StallTimes{});
  sums.Settle({4000, 8000, 10, 30});
  EXPECT_EQ(sums.sums(), (StallTimes{250, 750, 0, 0, 0, 0}));
  sums.Settle({4000, 8000, 10, 30});
  EXPECT_EQ(sums.sums(), (StallTimes{250, 750, 0, 0, 0, 0})) << "it was settled";
}

TEST(StallSumsTest, WaitingWithoutAWorkerIsForTheWorkers) {
  StallSums sums;
  sums.Defer(1000);
  sums.Settle({4000, 1000, 0, 5});
  EXPECT_EQ(sums.sums(), (StallTimes{0, 250, 750, 0, 0, 0}));
  sums.Defer(100);
  sums.Settle({50, 0, 0, 0});
  EXPECT_EQ(sums.sums(), (StallTimes{0, 250, 850, 0, 0, 0}));
}

TEST(StallSumsTest, NothingIsLostHoweverItIsSplit) {
  StallSums sums;
  uint64_t all = 0;
  for (uint64_t i = 1; i < 2000; ++i) {
    sums.Defer(i * 7919);
    all += i * 7919;
    sums.Settle({i * 31, i * i, UINT64_MAX / i, UINT64_MAX / (i + 1)});
    EXPECT_EQ(sums.sums()[0] + sums.sums()[1] + sums.sums()[2], all);
  }
}

TEST(StallSumsTest, WaitingWithoutACauseIsForgotten) {
  StallSums sums;
  sums.Defer(1000);
  EXPECT_EQ(sums.Forget(1000), 0U);
  EXPECT_EQ(sums.Forget(400), 600U);
  EXPECT_EQ(sums.Forget(400), 0U);
  sums.Settle({400, 100, 0, 5});
  EXPECT_EQ(sums.sums(), (StallTimes{0, 100, 300, 0, 0, 0}));
}

TEST(DurationCountsTest, BucketsHoldWhatIsAtMostTheirBound) {
  for (size_t bucket = 0; bucket < DurationCounts::kBounds; ++bucket) {
    EXPECT_EQ(DurationCounts::BucketOf(DurationCounts::BoundNs(bucket)), bucket);
    EXPECT_EQ(DurationCounts::BucketOf(DurationCounts::BoundNs(bucket) + 1), bucket + 1);
  }
  EXPECT_EQ(DurationCounts::BucketOf(0), 0U);
  EXPECT_EQ(DurationCounts::BucketOf(UINT64_MAX), DurationCounts::kBounds);
}

TEST(DurationHistogramTest, CountsWhatIsRecorded) {
  DurationHistogram histogram;
  DurationCounts expected;
  for (uint64_t ns = 1; ns < 10'000'000'000; ns *= 3) {
    histogram.Record(ns);
    expected.Add(ns);
  }
  EXPECT_EQ(histogram.Counts().counts, expected.counts);
  EXPECT_EQ(histogram.Counts().sum_ns, expected.sum_ns);
  EXPECT_EQ(expected.total(), 21U);
}

}  // namespace
}  // namespace pinfeed
