// SPDX-License-Identifier: Apache-2.0
// The state of each slot: FREE -> FILLING(g) -> READY(g) -> LENT(g) -> FREE. Kept in the daemon's private
// memory only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "common/wire/shared_page.h"

namespace pinfeed {

enum class SlotState : uint8_t { kFree, kFilling, kReady, kLent };

// Purpose: the slot states of one arena, with their generations. No memory, no pages: a pure state machine.
// Threads: not for concurrent use (the feed's mutex guards it). Errors: a wrong transition is a bug of ours
// and aborts. Invariants: 1. a slot's generation grows by one each time it leaves FREE, starting at 1; 2.
// only the four transitions happen (I1).
class Slots {
 public:
  // Precondition: count <= kMaxSlots.
  explicit Slots(uint32_t count);

  uint32_t count() const { return count_; }
  SlotState state(uint32_t slot) const;
  uint64_t generation(uint32_t slot) const;
  uint32_t CountIn(SlotState state) const;

  // FREE -> FILLING(g + 1); nothing when no slot is free.
  std::optional<uint32_t> TakeFree();
  void MarkReady(uint32_t slot);  // FILLING -> READY
  void MarkLent(uint32_t slot);   // READY -> LENT
  void MarkFree(uint32_t slot);   // LENT -> FREE
  void Abandon(uint32_t slot);    // FILLING or READY -> FREE: never shown to anybody

 private:
  struct Slot {
    SlotState state = SlotState::kFree;
    uint64_t generation = 0;
  };
  Slot& At(uint32_t slot);
  const Slot& At(uint32_t slot) const;

  const uint32_t count_;
  std::array<Slot, kMaxSlots> slots_{};
};

}  // namespace pinfeed
