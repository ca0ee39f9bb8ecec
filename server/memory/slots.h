// SPDX-License-Identifier: Apache-2.0
// The state of each slot: FREE -> FILLING(g) -> READY(g) -> LENT(g) -> FREE. Kept only in the daemon's
// private memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/wire/shared_page.h"

namespace pinfeed {

enum class SlotState : uint8_t { kFree, kFilling, kReady, kLent };

// Purpose: the slot states of one arena, with their generations. A pure state machine without memory or
// pages.
// Threads: not thread-safe; the feed's mutex guards it. Errors: a wrong transition is a bug and aborts.
// Invariants:
// 1. A slot's generation starts at 1 and grows by one each time the slot leaves FREE.
// 2. Only the four transitions happen (I1), besides Abandon.
class Slots {
 public:
  // Precondition: count <= kMaxSlots.
  explicit Slots(uint32_t count);

  uint32_t count() const { return count_; }
  SlotState state(uint32_t slot) const;
  uint64_t generation(uint32_t slot) const;
  uint32_t CountIn(SlotState state) const { return counts_[static_cast<size_t>(state)]; }

  // FREE -> FILLING(g + 1). Empty when no slot is free.
  std::optional<uint32_t> TakeFree();
  void MarkReady(uint32_t slot);  // FILLING -> READY
  void MarkLent(uint32_t slot);   // READY -> LENT
  void MarkFree(uint32_t slot);   // LENT -> FREE
  void Abandon(uint32_t slot);    // FILLING or READY -> FREE: no client has seen it

 private:
  struct Slot {
    SlotState state = SlotState::kFree;
    uint64_t generation = 0;
  };
  const Slot& At(uint32_t slot) const;
  void Enter(uint32_t slot, SlotState state);

  const uint32_t count_;
  std::array<Slot, kMaxSlots> slots_{};
  std::array<uint32_t, 4> counts_{};  // of the slots in each state
};

}  // namespace pinfeed
