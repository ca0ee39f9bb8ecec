// SPDX-License-Identifier: Apache-2.0
#include "server/order/permutation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr uint64_t kListed = Permutation::kMaxListed;

std::vector<uint64_t> All(uint64_t n, uint64_t seed, uint64_t epoch) {
  const Permutation permutation(n, seed, epoch);
  std::vector<uint64_t> out(n);
  for (uint64_t i = 0; i < n; ++i) out[i] = permutation(i);
  return out;
}

void ExpectPermutation(uint64_t n, uint64_t seed, uint64_t epoch) {
  std::vector<uint64_t> got = All(n, seed, epoch);
  std::sort(got.begin(), got.end());
  for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(got[i], i) << "n = " << n;
}

TEST(PermutationTest, IsAPermutationForEverySmallSize) {
  for (uint64_t n = 1; n <= 300; ++n) ExpectPermutation(n, 7, n % 5);
}

TEST(PermutationTest, IsAPermutationOnBothSidesOfTheLargestList) {
  for (const uint64_t n : {kListed - 1, kListed, kListed + 1, 4 * kListed, 4 * kListed + 1})
    ExpectPermutation(n, 7, 3);
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

TEST(PermutationTest, PositionOfIsTheInverse) {
  for (const uint64_t n :
       {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{1000}, kListed, kListed + 1, 4 * kListed,
        4 * kListed + 1, (uint64_t{1} << 32) + 1, uint64_t{1} << 63, UINT64_MAX}) {
    const Permutation permutation(n, 9, 4);
    for (uint64_t i = 0; i < std::min<uint64_t>(n, 5000); ++i) {
      for (const uint64_t index : {i, n - 1 - i}) {
        ASSERT_EQ(permutation.PositionOf(permutation(index)), index) << "n = " << n;
        ASSERT_EQ(permutation(permutation.PositionOf(index)), index) << "n = " << n;
      }
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

// The order is part of the contract: a cursor taken by one version must resume in the next. When it changes,
// kCursorVersion does.
TEST(PermutationTest, OrderDoesNotChangeBetweenVersions) {
  EXPECT_EQ(All(10, 42, 3), (std::vector<uint64_t>{2, 7, 8, 6, 3, 9, 0, 5, 1, 4}));
  const Permutation large(1'000'000'000, 42, 3);
  std::vector<uint64_t> first(4);
  for (uint64_t i = 0; i < first.size(); ++i) first[i] = large(i);
  EXPECT_EQ(first, (std::vector<uint64_t>{868018914, 327852557, 328230050, 622063462}));
}

// How many standard deviations Pearson's chi-squared of the counts of [0, range) in equal bins lies from its
// mean, were each number equally likely (E. Wilson and M. Hilferty's normal form, PNAS 17(12), 1931).
double Deviation(const std::vector<uint32_t>& counts, uint64_t range) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  const auto first_of = [&](uint64_t bin) { return (bin * range + counts.size() - 1) / counts.size(); };
  double chi = 0;
  for (size_t bin = 0; bin < counts.size(); ++bin) {
    const auto numbers = static_cast<double>(first_of(bin + 1) - first_of(bin));
    const double expected = total * numbers / static_cast<double>(range);
    chi += (counts[bin] - expected) * (counts[bin] - expected) / expected;
  }
  const double spread = 2.0 / 9 / (static_cast<double>(counts.size()) - 1);
  return (std::cbrt(chi * 4.5 * spread) - (1 - spread)) / std::sqrt(spread);
}

// The number of an order among all of its size (its Lehmer code).
uint64_t Rank(const std::vector<uint64_t>& order) {
  uint64_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto less = std::count_if(order.begin() + static_cast<ptrdiff_t>(i), order.end(),
                                    [&](uint64_t later) { return later < order[i]; });
    rank = rank * (order.size() - i) + static_cast<uint64_t>(less);
  }
  return rank;
}

bool IsEven(const std::vector<uint64_t>& order) {
  std::vector<bool> seen(order.size());
  bool even = true;
  for (uint64_t start = 0; start < order.size(); ++start) {
    uint64_t length = 0;
    for (uint64_t at = start; !seen[at]; at = order[at], ++length) seen[at] = true;
    if (length != 0 && length % 2 == 0) even = !even;
  }
  return even;
}

TEST(PermutationTest, EveryOrderOfASmallSetIsEquallyLikely) {
  uint32_t orders = 1;
  for (uint64_t n = 2; n <= 5; ++n) {
    orders *= static_cast<uint32_t>(n);
    std::vector<uint32_t> by_seed(orders);
    std::vector<uint32_t> by_epoch(orders);
    for (uint64_t i = 0; i < 200 * uint64_t{orders}; ++i) {
      ++by_seed[Rank(All(n, i, 0))];
      ++by_epoch[Rank(All(n, 0, i))];
    }
    EXPECT_LT(std::abs(Deviation(by_seed, orders)), 4) << n;
    EXPECT_LT(std::abs(Deviation(by_epoch, orders)), 4) << n;
  }
}

TEST(PermutationTest, HalfOfTheOrdersAreEven) {
  for (const uint64_t n : {2, 3, 4, 16, 64, 100, 1024, 1 << 16, (1 << 16) + 1, 1 << 18}) {
    const uint32_t orders = n > 1024 ? 24 : 1024;
    uint32_t even = 0;
    for (uint64_t seed = 0; seed < orders; ++seed) even += IsEven(All(n, seed, 1)) ? 1 : 0;
    EXPECT_NEAR(even, orders / 2.0, 4 * std::sqrt(orders) / 2) << n;
  }
}

TEST(PermutationTest, OneElementInAnOrderStaysWhereItWas) {
  for (const uint64_t n : {2, 5, 16, 1000, 1 << 16, (1 << 16) + 1, 1 << 18}) {
    const uint32_t orders = n > 1000 ? 24 : 1024;
    uint32_t fixed = 0;
    for (uint64_t seed = 0; seed < orders; ++seed) {
      const Permutation permutation(n, seed, 2);
      for (uint64_t i = 0; i < n; ++i) fixed += permutation(i) == i ? 1 : 0;
    }
    EXPECT_NEAR(fixed, orders, 4 * std::sqrt(orders)) << n;
  }
}

// From the smallest set to the largest: what stands at a place is uniform over seeds; so is the distance to
// the next place's, to that of a place as far away as the network is wide, and to the next epoch's.
class PermutationSizeTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(PermutationSizeTest, ValuesAndDistancesAreUniform) {
  const uint64_t n = GetParam();
  const uint64_t values = std::min<uint64_t>(n, 64);
  const uint64_t distances = std::min<uint64_t>(n - 1, 63);
  const uint64_t seeds = n > 1000 && n <= kListed ? 1000 : 20000;  // a list costs more
  const uint64_t half = uint64_t{1} << (std::bit_width(n - 1) + 1) / 2;
  std::vector<uint64_t> places = {0, 1, n / 3, n / 2, n - 2, n - 1};
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  std::vector<std::vector<uint32_t>> value(places.size(), std::vector<uint32_t>(values));
  std::vector<std::vector<uint32_t>> next(places.size(), std::vector<uint32_t>(distances));
  std::vector<std::vector<uint32_t>> far = next;
  std::vector<std::vector<uint32_t>> epoch(places.size(), std::vector<uint32_t>(values));
  const auto bin = [](uint64_t number, uint64_t range, uint64_t bins) {
    return static_cast<size_t>(number * bins / range);
  };
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const Permutation permutation(n, seed, 5);
    const Permutation after(n, seed, 6);
    for (size_t p = 0; p < places.size(); ++p) {
      const uint64_t here = permutation(places[p]);
      const auto from_here = [&](uint64_t there) { return (there + n - here) % n; };  // not 0 but for `after`
      ++value[p][bin(here, n, values)];
      ++next[p][bin(from_here(permutation((places[p] + 1) % n)) - 1, n - 1, distances)];
      if (half % n != 0) ++far[p][bin(from_here(permutation((places[p] + half) % n)) - 1, n - 1, distances)];
      ++epoch[p][bin(from_here(after(places[p])), n, values)];
    }
  }
  for (size_t p = 0; p < places.size(); ++p) {
    EXPECT_LT(std::abs(Deviation(value[p], n)), 4) << "place " << places[p];
    EXPECT_LT(std::abs(Deviation(epoch[p], n)), 4) << "place " << places[p];
    if (distances < 2) continue;
    EXPECT_LT(std::abs(Deviation(next[p], n - 1)), 4) << "place " << places[p];
    if (half % n == 0) continue;
    EXPECT_LT(std::abs(Deviation(far[p], n - 1)), 4) << "place " << places[p];
  }
}

INSTANTIATE_TEST_SUITE_P(All, PermutationSizeTest,
                         ::testing::Values(2, 3, 4, 5, 7, 16, 17, 64, 100, 1000, 4096, kListed, kListed + 1,
                                           100'003, 1 << 18, 1'000'000, 1 << 20, 1'000'000'000));

// How many of the pairs of neighbours in an order are neighbours in the dataset: two on average, in either
// direction one.
TEST(PermutationTest, NeighboursStayNeighboursAsOftenAsByChance) {
  for (const uint64_t n : {16, 1000, 1 << 16, (1 << 16) + 1, 1 << 18}) {
    const uint32_t orders = n > 1000 ? 24 : 1024;
    uint32_t up = 0;
    uint32_t down = 0;
    for (uint64_t seed = 0; seed < orders; ++seed) {
      const std::vector<uint64_t> order = All(n, seed, 3);
      for (size_t i = 1; i < order.size(); ++i) {
        up += order[i] == order[i - 1] + 1 ? 1 : 0;
        down += order[i] + 1 == order[i - 1] ? 1 : 0;
      }
    }
    const double expected = orders * (1 - 1.0 / static_cast<double>(n));
    EXPECT_NEAR(up, expected, 4 * std::sqrt(orders)) << n;
    EXPECT_NEAR(down, expected, 4 * std::sqrt(orders)) << n;
  }
}

}  // namespace
}  // namespace pinfeed
