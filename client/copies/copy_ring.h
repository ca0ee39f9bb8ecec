// SPDX-License-Identifier: Apache-2.0
// Page-locked memory that copies to a GPU pass through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/cuda/device_memory.h"
#include "common/cuda/stream.h"

namespace pinfeed {

// Purpose: slots of page-locked memory that are filled, read by the GPU, and filled again. Owns the memory,
// its registration and the slots' events; a share of the context. Forked children do not inherit the memory.
// Threads: any. Precondition of destruction: no slot is taken.
class CopyRing {
 public:
  // The GPU pauses for some us between two copies: larger ones reach more of the link's rate.
  static constexpr uint64_t kSlotBytes = uint64_t{8} << 20;
  static constexpr uint32_t kFirstSlots = 4;

  struct Slot {
    std::byte* memory = nullptr;
    UniqueCudaEvent sent;  // behind the last copy from the slot
  };

  CopyRing(std::shared_ptr<const CudaDevice> device, uint32_t max_slots)
      : device_(std::move(device)), max_slots_(max_slots) {}
  // Waits until the GPU has read the slots.
  ~CopyRing();

  // Page-locks memory if fewer than `slots` slots exist: a few, or else all that the ring may have.
  // Precondition of the functions below: the context is current.
  Status Grow(uint64_t slots) PF_EXCLUDES(mutex_);
  // Takes a slot. Waits until the GPU has read one if none is free. Precondition: Grow has succeeded.
  Result<Slot*> Take() PF_EXCLUDES(mutex_);
  // Returns a slot, whose event is recorded behind the copies from it.
  void GiveBackSent(Slot* slot) PF_EXCLUDES(mutex_);
  // Returns a slot that no queued copy reads.
  void GiveBackUnsent(Slot* slot) PF_EXCLUDES(mutex_);

 private:
  // A mapping of mmap(2).
  struct MemoryTraits {
    struct Handle {
      void* address;
      uint64_t bytes;
      bool operator==(const Handle&) const = default;
    };
    static constexpr Handle Null() { return {nullptr, 0}; }
    static void Close(Handle memory) noexcept;
  };
  struct Slab {
    UniqueHandle<MemoryTraits> memory;
    HostRegistration registration;  // goes before the memory
  };
  Result<Slab> MakeSlab(uint64_t bytes) const;
  Status AddSlots(uint32_t count) PF_REQUIRES(growth_);

  const std::shared_ptr<const CudaDevice> device_;
  const uint32_t max_slots_;
  Mutex growth_;                                     // before mutex_: page-locking takes long
  bool cannot_grow_ PF_GUARDED_BY(growth_) = false;  // for lack of memory that can be page-locked
  std::vector<Slab> slabs_ PF_GUARDED_BY(growth_);
  std::vector<std::unique_ptr<Slot>> slots_ PF_GUARDED_BY(growth_);
  Mutex mutex_;
  CondVar returned_;
  std::vector<Slot*> free_ PF_GUARDED_BY(mutex_);
  std::deque<Slot*> sent_ PF_GUARDED_BY(mutex_);  // the oldest first
};

}  // namespace pinfeed
