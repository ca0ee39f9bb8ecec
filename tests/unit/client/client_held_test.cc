// SPDX-License-Identifier: Apache-2.0
// How many batches the caller holds, as pf_next_info tells it, what the daemon hears of copied ones, and what
// the caller is told who holds all.
#include <array>
#include <vector>

#include "tests/unit/client/served_feed.h"

namespace pinfeed {
namespace {

TEST_F(ServedFeedTest, HeldBatchesAreToldWithEachBatchAndCopiedOnesToTheDaemon) {
  std::array<pf_batch*, 3> batches{};
  pf_batch_info info;
  pf_batch_info_init(&info, sizeof(info));
  const auto next_held = [&](size_t number) {
    session_.Publish();
    EXPECT_EQ(pf_next_info(feed_.get(), -1, &batches[number], &info), PF_OK);
    return info.held;
  };
  EXPECT_EQ(next_held(0), 1U);
  EXPECT_EQ(next_held(1), 2U);
  pf_batch_release(batches[0]);
  EXPECT_EQ(next_held(2), 2U);
  EXPECT_EQ(session_.release_page().copied.load(), 0U);
  for (const uint64_t count : {1U, 2U}) {
    EXPECT_EQ(pf_count_copied(feed_.get()), PF_OK);
    EXPECT_EQ(session_.release_page().copied.load(), count);
  }
  EXPECT_EQ(pf_count_copied(nullptr), PF_INVALID_ARGUMENT);
  pf_batch_release(batches[1]);
  pf_batch_release(batches[2]);
}

TEST_F(ServedFeedTest, WhoHoldsEverySlotIsTold) {
  std::vector<Batch> held;
  for (int i = 0; i < 3; ++i) {
    session_.Publish();
    held.push_back(*feed_.Next());
  }
  pf_batch* none = nullptr;
  const auto wait = [&](int64_t ms) { EXPECT_EQ(pf_next(feed_.get(), ms, &none), PF_DEADLINE_EXCEEDED); };
  for (int i = 0; log_.lines.empty(); ++i) {  // the waits of many calls count together
    ASSERT_LT(i, 100);
    wait(50);
  }
  EXPECT_THAT(log_.lines[0], HasSubstr("all 3 slots are held"));
  held.pop_back();
  wait(1300);
  EXPECT_THAT(log_.lines, SizeIs(1));
}

}  // namespace
}  // namespace pinfeed
