// SPDX-License-Identifier: Apache-2.0
#include "server/memory/slots.h"

#include "common/base/status.h"

namespace pinfeed {

Slots::Slots(uint32_t count) : count_(count) {
  PF_CHECK(count <= kMaxSlots, "more slots than the control pages have words");
}

Slots::Slot& Slots::At(uint32_t slot) {
  PF_CHECK(slot < count_, "no such slot");
  return slots_[slot];
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

uint32_t Slots::CountIn(SlotState state) const {
  uint32_t count = 0;
  for (uint32_t i = 0; i < count_; ++i) count += slots_[i].state == state ? 1 : 0;
  return count;
}

std::optional<uint32_t> Slots::TakeFree() {
  for (uint32_t i = 0; i < count_; ++i) {
    if (slots_[i].state != SlotState::kFree) continue;
    slots_[i].state = SlotState::kFilling;
    ++slots_[i].generation;
    return i;
  }
  return std::nullopt;
}

void Slots::MarkReady(uint32_t slot) {
  PF_CHECK(At(slot).state == SlotState::kFilling, "only a filling slot becomes ready");
  At(slot).state = SlotState::kReady;
}

void Slots::MarkLent(uint32_t slot) {
  PF_CHECK(At(slot).state == SlotState::kReady, "only a ready slot is lent");
  At(slot).state = SlotState::kLent;
}

void Slots::MarkFree(uint32_t slot) {
  PF_CHECK(At(slot).state == SlotState::kLent, "only a lent slot becomes free");
  At(slot).state = SlotState::kFree;
}

void Slots::Abandon(uint32_t slot) {
  PF_CHECK(At(slot).state == SlotState::kFilling || At(slot).state == SlotState::kReady,
           "a lent slot cannot be abandoned");
  At(slot).state = SlotState::kFree;
}

}  // namespace pinfeed
