// SPDX-License-Identifier: Apache-2.0
#include "server/source/permutation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/testing.h"

namespace pinfeed {
namespace {

std::vector<uint64_t> All(uint64_t n, uint64_t seed, uint64_t epoch) {
  const Permutation permutation(n, seed, epoch);
  std::vector<uint64_t> out(n);
  for (uint64_t i = 0; i < n; ++i) out[i] = permutation(i);
  return out;
}

TEST(PermutationTest, IsAPermutationForEverySmallSize) {
  for (uint64_t n = 1; n <= 300; ++n) {
    std::vector<uint64_t> got = All(n, 7, n % 5);
    std::sort(got.begin(), got.end());
    for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(got[i], i) << "n = " << n;
  }
}

TEST(PermutationTest, StaysInsideAtSizesAroundPowersOfTwoUpToTheLargest) {
  for (const uint64_t n :
       {uint64_t{1} << 31, (uint64_t{1} << 32) - 1, (uint64_t{1} << 32) + 1, uint64_t{1} << 63, UINT64_MAX}) {
    const Permutation permutation(n, 1, 2);
    for (uint64_t i = 0; i < 1000; ++i) {
      EXPECT_LT(permutation(i), n);
      EXPECT_LT(permutation(n - 1 - i), n);
    }
  }
}

TEST(PermutationTest, SeedAndEpochEachGiveAnotherOrder) {
  EXPECT_NE(All(1000, 1, 0), All(1000, 2, 0));
  EXPECT_NE(All(1000, 1, 0), All(1000, 1, 1));
  EXPECT_NE(All(1000, 1, 2), All(1000, 2, 1));  // not a function of the sum
}

TEST(PermutationTest, SameKeyGivesTheSameOrder) {
  EXPECT_EQ(All(1000, 5, 9), All(1000, 5, 9));
}

// The order is part of the contract: a cursor taken by one version must resume in the next.
TEST(PermutationTest, OrderDoesNotChangeBetweenVersions) {
  EXPECT_EQ(All(10, 42, 3), (std::vector<uint64_t>{9, 5, 6, 7, 8, 1, 3, 2, 4, 0}));
}

// Chi-squared over the image of the first tenth: uniform within five standard deviations.
TEST(PermutationTest, FirstTenthSpreadsOverAllBins) {
  constexpr uint64_t kN = 100000;
  constexpr size_t kBins = 100;
  constexpr double kExpected = static_cast<double>(kN) / 10 / kBins;
  for (uint64_t epoch = 0; epoch < 5; ++epoch) {
    const Permutation permutation(kN, 11, epoch);
    std::vector<double> bins(kBins);
    for (uint64_t i = 0; i < kN / 10; ++i) bins[permutation(i) * kBins / kN] += 1;
    double chi = 0;
    for (const double count : bins) chi += (count - kExpected) * (count - kExpected) / kExpected;
    EXPECT_LT(chi, (kBins - 1) + 5 * std::sqrt(2.0 * (kBins - 1))) << "epoch " << epoch;
  }
}

// Neighbours in the order must not be neighbours in the dataset more often than by chance.
TEST(PermutationTest, NeighboursAreFarApart) {
  const std::vector<uint64_t> order = All(100000, 3, 0);
  double mean = 0;
  for (size_t i = 1; i < order.size(); ++i) {
    mean += std::abs(static_cast<double>(order[i]) - static_cast<double>(order[i - 1])) /
            static_cast<double>(order.size() - 1);
  }
  EXPECT_NEAR(mean, 100000.0 / 3, 1000);  // E|X - Y| of two uniform values is a third of the range
}

}  // namespace
}  // namespace pinfeed
