// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/user_credit.h"

#include <map>

#include "tests/testing.h"

namespace pinfeed {
namespace {

using Clock = UserCredit::Clock;
constexpr std::chrono::milliseconds kStep(5);

uint64_t Spend(UserCredit& credit, Clock::time_point now) {
  uint64_t spent = 0;
  while (credit.Take(4, now)) spent += 4;
  return spent;
}

TEST(UserCreditTest, GivesWhatIsSavedUpAndThenTheIncome) {
  Clock::time_point now{};
  UserCredit credit(now);
  EXPECT_EQ(Spend(credit, now), UserCredit::kMost);
  now += std::chrono::milliseconds(100);
  EXPECT_NEAR(static_cast<double>(Spend(credit, now)), UserCredit::kIncomeASecond / 10, 4);
  now += std::chrono::hours(1);
  EXPECT_TRUE(credit.full(now));
  EXPECT_EQ(Spend(credit, now), UserCredit::kMost);
}

TEST(UserCreditTest, NobodyGoesBeforeThoseThatWait) {
  Clock::time_point now{};
  UserCredit credit(now);
  Spend(credit, now);
  credit.Wait(1, 4, false);
  now += std::chrono::seconds(1);
  EXPECT_FALSE(credit.Take(4, now));
  const auto turn = credit.NextTurn(now);
  ASSERT_TRUE(turn.has_value());
  EXPECT_EQ(turn->first, 1);
  EXPECT_EQ(turn->second, UserCredit::kTurn);
  EXPECT_FALSE(credit.NextTurn(now).has_value());
  EXPECT_TRUE(credit.Take(4, now));
}

// Whatever one asks for at a time, it gets no more than the others; new ones have half.
TEST(UserCreditTest, TurnsAreShared) {
  Clock::time_point now{};
  UserCredit credit(now);
  Spend(credit, now);
  std::map<UserCredit::Id, uint64_t> given;
  constexpr UserCredit::Id kNew = 100;
  for (UserCredit::Id id = 1; id <= 8; ++id) credit.Wait(id, 4, false);
  credit.Wait(kNew, 40, true);
  for (int step = 0; step < 1000; ++step) {
    now += kStep;
    while (const auto turn = credit.NextTurn(now)) {
      given[turn->first] += turn->second;
      credit.Wait(turn->first, turn->first == kNew ? 40 : 4, turn->first == kNew);
    }
  }
  const double all = UserCredit::kIncomeASecond * 5;
  EXPECT_NEAR(static_cast<double>(given[kNew]), all / 2, all / 100);
  for (UserCredit::Id id = 1; id <= 8; ++id)
    EXPECT_NEAR(static_cast<double>(given[id]), all / 16, all / 100) << id;
}

TEST(UserCreditTest, WhoLeavesHasNoTurn) {
  const Clock::time_point now{};
  UserCredit credit(now);
  credit.Wait(1, 4, false);
  credit.Wait(2, 4, true);
  credit.Leave(1);
  EXPECT_EQ(credit.NextTurn(now)->first, 2);
  EXPECT_FALSE(credit.somebody_waits());
}

}  // namespace
}  // namespace pinfeed
