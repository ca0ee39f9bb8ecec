// SPDX-License-Identifier: Apache-2.0
#include "server/memory/slots.h"

#include "common/base/status.h"

namespace pinfeed {

Slots::Slots(uint32_t count) : count_(count) {
  PF_CHECK(count <= kMaxSlots, "more slots than the control pages have words");
  counts_[static_cast<size_t>(SlotState::kFree)] = count;
}

const Slots::Slot& Slots::At(uint32_t slot) const {
  PF_CHECK(slot < count_, "no such slot");
  return slots_[slot];
}

SlotState Slots::state(uint32_t slot) const {
  return At(slot).state;
}
uint64_t Slots::generation(uint32_t slot) const {
  return At(slot).generation;
}

std::optional<uint32_t> Slots::TakeFree() {
  if (CountIn(SlotState::kFree) == 0) return std::nullopt;
  uint32_t slot = 0;
  while (slots_[slot].state != SlotState::kFree) ++slot;
  Enter(slot, SlotState::kFilling);
  ++slots_[slot].generation;
  return slot;
}

void Slots::MarkReady(uint32_t slot) {
  PF_CHECK(state(slot) == SlotState::kFilling, "only a filling slot becomes ready");
  Enter(slot, SlotState::kReady);
}

void Slots::MarkLent(uint32_t slot) {
  PF_CHECK(state(slot) == SlotState::kReady, "only a ready slot is lent");
  Enter(slot, SlotState::kLent);
}

void Slots::MarkFree(uint32_t slot) {
  PF_CHECK(state(slot) == SlotState::kLent, "only a lent slot becomes free");
  Enter(slot, SlotState::kFree);
}

void Slots::Abandon(uint32_t slot) {
  PF_CHECK(state(slot) == SlotState::kFilling || state(slot) == SlotState::kReady,
           "a lent slot cannot be abandoned");
  Enter(slot, SlotState::kFree);
}

void Slots::Enter(uint32_t slot, SlotState state) {
  --counts_[static_cast<size_t>(slots_[slot].state)];
  ++counts_[static_cast<size_t>(state)];
  slots_[slot].state = state;
}

}  // namespace pinfeed
