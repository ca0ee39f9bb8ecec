// SPDX-License-Identifier: Apache-2.0
#include "server/feed/bad_samples.h"

#include <string>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

// Checks batches, one a letter: g has a good sample, b has none. Returns how many pass before one fails.
size_t PassedBefore(BadSamples samples, const std::string& batches, uint64_t per_epoch, uint64_t first = 0) {
  for (size_t i = 0; i < batches.size(); ++i) {
    FillResult result;
    result.all_bad = batches[i] == 'b';
    if (result.all_bad) result.bad.push_back({i, "it is bad"});
    const Status checked = samples.CheckBatch({.batch_index = (first + i) % per_epoch}, result);
    if (checked.ok()) continue;
    EXPECT_THAT(checked,
                StatusIs(Code::kDataLoss, HasSubstr("no good sample; the first bad one: it is bad")));
    return i;
  }
  return batches.size();
}

TEST(BadSamplesTest, OnlyAnEpochWithoutAGoodSampleIsAnError) {
  const BadSamples one(OnBadSample::kSkip, 3, 1);
  EXPECT_EQ(PassedBefore(one, "bbb", 3), 2U);
  EXPECT_EQ(PassedBefore(one, "gbbbbb", 3), 5U) << "not the first of the second epoch";
  EXPECT_EQ(PassedBefore(one, "gbbbbgbbgbgb", 3), 12U);
  EXPECT_EQ(PassedBefore(one, "bbbbb", 3, 1), 4U) << "begun within an epoch";
  EXPECT_EQ(PassedBefore({OnBadSample::kZero, 1, 1}, "gb", 1), 1U);
}

TEST(BadSamplesTest, ARankSeesAPartOfTheEpoch) {
  const BadSamples two(OnBadSample::kZero, 2, 2);
  EXPECT_EQ(PassedBefore(two, "bbbb", 2), 3U);
  EXPECT_EQ(PassedBefore(two, "bbgbbbbb", 2), 7U);
  EXPECT_EQ(PassedBefore(two, "bbbgbbbg", 2), 8U);
}

}  // namespace
}  // namespace pinfeed
