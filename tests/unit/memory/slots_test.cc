// SPDX-License-Identifier: Apache-2.0
#include "server/memory/slots.h"

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(SlotsTest, GoesRoundAndCountsUses) {
  Slots slots(3);
  for (uint64_t use = 1; use <= 5; ++use) {
    const auto slot = slots.TakeFree();
    ASSERT_TRUE(slot.has_value());
    EXPECT_EQ(slots.generation(*slot), use);
    EXPECT_EQ(slots.state(*slot), SlotState::kFilling);
    slots.MarkReady(*slot);
    slots.MarkLent(*slot);
    EXPECT_EQ(slots.state(*slot), SlotState::kLent);
    slots.MarkFree(*slot);
    EXPECT_EQ(slots.CountIn(SlotState::kFree), 3U);
  }
}

TEST(SlotsTest, GivesNoSlotThatIsInUse) {
  Slots slots(3);
  EXPECT_EQ(slots.TakeFree(), 0U);
  EXPECT_EQ(slots.TakeFree(), 1U);
  EXPECT_EQ(slots.TakeFree(), 2U);
  EXPECT_EQ(slots.TakeFree(), std::nullopt);
  slots.Abandon(1);
  EXPECT_EQ(slots.TakeFree(), 1U);
  EXPECT_EQ(slots.generation(1), 2U);
}

TEST(SlotsDeathTest, WrongTransitionsAreBugs) {
  Slots slots(3);
  EXPECT_DEATH(slots.MarkReady(0), "only a filling slot");
  EXPECT_DEATH(slots.MarkLent(0), "only a ready slot");
  EXPECT_DEATH(slots.MarkFree(0), "only a lent slot");
  EXPECT_DEATH(slots.Abandon(0), "cannot be abandoned");
  EXPECT_DEATH(static_cast<void>(slots.state(3)), "no such slot");
  EXPECT_DEATH(Slots(kMaxSlots + 1), "more slots");
}

}  // namespace
}  // namespace pinfeed
