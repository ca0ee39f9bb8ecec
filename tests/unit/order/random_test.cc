// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <set>
#include <span>

#include "common/base/sample_random.h"
#include "server/order/philox_blocks.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using Words = std::array<uint32_t, 4>;

// The vectors for philox4x32 with 10 rounds that the authors publish with their library (Random123,
// tests/kat_vectors).
TEST(RandomTest, PhiloxGivesTheAuthorsVectors) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomTest, BlocksAreThoseOfTheirCounters) {
  const Words first{0xfffffffe, 2, 3, 4};  // also where the first word begins anew
  const PhiloxNumbers numbers = Philox4x32Blocks(first, {5, 6});
  for (uint32_t i = 0; i < kPhiloxBlocks; ++i) {
    const Words block = Philox4x32({first[0] + i, 2, 3, 4}, {5, 6});
    EXPECT_TRUE(std::ranges::equal(block, std::span(numbers).subspan(size_t{4} * i, 4))) << i;
  }
}

TEST(RandomTest, EveryPartOfTheKeyChangesTheStream) {
  std::set<uint64_t> seen;
  const uint64_t high = uint64_t{1} << 32;
  size_t count = 0;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, high}) {
    for (const uint64_t epoch : {uint64_t{0}, uint64_t{1}, high}) {
      for (const uint64_t sample : {uint64_t{0}, uint64_t{1}, high}) {
        for (const uint32_t transform : {0U, 1U}) {
          SampleRandom random(seed, epoch, sample, transform);
          for (int i = 0; i < 8; ++i, ++count) seen.insert(random.Next());
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), count);
}

TEST(RandomTest, SameKeyGivesTheSameStream) {
  SampleRandom a(3, 4, 5, 6);
  SampleRandom b(3, 4, 5, 6);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(a.Next(), b.Next());
}

TEST(RandomTest, NumbersStayInTheirRangesAndFillThem) {
  std::array<int, 7> counts{};
  double sum = 0;
  constexpr int kDraws = 70000;
  SampleRandom random(1, 2, 3, 4);
  for (int i = 0; i < kDraws; ++i) {
    const double unit = random.Unit();
    ASSERT_GE(unit, 0);
    ASSERT_LT(unit, 1);
    sum += unit;
    const uint32_t below = random.Below(7);
    ASSERT_LT(below, 7U);
    ++counts[below];
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.01);                                // five standard deviations are 0.0055
  for (const int count : counts) EXPECT_NEAR(count, kDraws / 7, 500);  // five are 463
  EXPECT_EQ(random.Below(1), 0U);
}

}  // namespace
}  // namespace pinfeed
