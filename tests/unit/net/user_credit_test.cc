// SPDX-License-Identifier: Apache-2.0
#include "server/net/user_credit.h"

#include <map>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using Clock = UserCredit::Clock;
constexpr std::chrono::milliseconds kStep(5);

uint64_t Spend(UserCredit& credit, Clock::time_point now) {
  uint64_t spent = 0;
  while (credit.TryTake(4, now)) spent += 4;
  return spent;
}

TEST(UserCreditTest, GivesWhatIsSavedUpAndThenTheIncome) {
  Clock::time_point now{};
  UserCredit credit(now);
  EXPECT_EQ(Spend(credit, now), UserCredit::kMaxCredit);
  now += std::chrono::milliseconds(100);
  EXPECT_NEAR(static_cast<double>(Spend(credit, now)), UserCredit::kCreditPerSecond / 10, 4);
  now += std::chrono::hours(1);
  EXPECT_TRUE(credit.full(now));
  EXPECT_EQ(Spend(credit, now), UserCredit::kMaxCredit);
}

TEST(UserCreditTest, NobodyGoesBeforeThoseThatWait) {
  Clock::time_point now{};
  UserCredit credit(now);
  Spend(credit, now);
  credit.Enqueue(1, 4, false);
  now += std::chrono::seconds(1);
  EXPECT_FALSE(credit.TryTake(4, now));
  const auto turn = credit.NextGrant(now);
  ASSERT_TRUE(turn.has_value());
  EXPECT_EQ(turn->first, 1);
  EXPECT_EQ(turn->second, UserCredit::kGrant);
  EXPECT_FALSE(credit.NextGrant(now).has_value());
  EXPECT_TRUE(credit.TryTake(4, now));
}

// Whatever one asks for at a time, it gets no more than the others; new ones have half.
TEST(UserCreditTest, TurnsAreShared) {
  Clock::time_point now{};
  UserCredit credit(now);
  Spend(credit, now);
  std::map<UserCredit::Id, uint64_t> given;
  constexpr UserCredit::Id kNew = 100;
  for (UserCredit::Id id = 1; id <= 8; ++id) credit.Enqueue(id, 4, false);
  credit.Enqueue(kNew, 40, true);
  for (int step = 0; step < 1000; ++step) {
    now += kStep;
    while (const auto turn = credit.NextGrant(now)) {
      given[turn->first] += turn->second;
      credit.Enqueue(turn->first, turn->first == kNew ? 40 : 4, turn->first == kNew);
    }
  }
  const double all = UserCredit::kCreditPerSecond * 5;
  EXPECT_NEAR(static_cast<double>(given[kNew]), all / 2, all / 100);
  for (UserCredit::Id id = 1; id <= 8; ++id)
    EXPECT_NEAR(static_cast<double>(given[id]), all / 16, all / 100) << id;
}

TEST(UserCreditTest, WhoLeavesHasNoTurn) {
  const Clock::time_point now{};
  UserCredit credit(now);
  credit.Enqueue(1, 4, false);
  credit.Enqueue(2, 4, true);
  credit.Remove(1);
  EXPECT_EQ(credit.NextGrant(now)->first, 2);
  EXPECT_FALSE(credit.anyone_waiting());
}

}  // namespace
}  // namespace pinfeed
