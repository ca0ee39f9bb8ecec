// SPDX-License-Identifier: Apache-2.0
#include "server/session/silent_lifelines.h"

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(SilentLifelinesTest, OldestOfAUserGoesWhenTheUserHasTooMany) {
  SilentLifelines silent(2, 100);
  EXPECT_EQ(silent.Add(7, 1), std::nullopt);
  EXPECT_EQ(silent.Add(8, 2), std::nullopt);
  EXPECT_EQ(silent.Add(7, 3), std::nullopt);
  EXPECT_EQ(silent.Add(7, 4), 1U);
  EXPECT_EQ(silent.Add(7, 5), 3U);
  EXPECT_EQ(silent.Add(8, 6), std::nullopt);
  EXPECT_EQ(silent.size(), 4U);
}

TEST(SilentLifelinesTest, WhoHasTheMostGivesWayWhenThereAreTooManyInAll) {
  SilentLifelines silent(100, 5);
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(silent.Add(7, id), std::nullopt);
  EXPECT_EQ(silent.Add(8, 5), std::nullopt);
  EXPECT_EQ(silent.Add(9, 6), 1U);
  EXPECT_EQ(silent.Add(9, 7), 2U);
  EXPECT_EQ(silent.size(), 5U);
}

TEST(SilentLifelinesTest, WhoSaidHelloCountsNoMore) {
  SilentLifelines silent(1, 100);
  for (uint64_t id = 1; id <= 10; ++id) {
    EXPECT_EQ(silent.Add(7, id), std::nullopt);
    silent.Remove(7, id);
    silent.Remove(7, id);
  }
  EXPECT_EQ(silent.size(), 0U);
}

TEST(SilentLifelinesTest, NewestIsNeverTheOneThatGoes) {
  SilentLifelines silent(1, 1);
  EXPECT_EQ(silent.Add(7, 1), std::nullopt);
  EXPECT_EQ(silent.Add(8, 2), 1U);
  EXPECT_EQ(silent.Add(8, 3), 2U);
}

}  // namespace
}  // namespace pinfeed
