// SPDX-License-Identifier: Apache-2.0
// Stages 3 to 5 of the way of a batch: the N slots of a session (or of a group that shares them). In: a
// filled slot. Out: the same slot, visible to clients.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "common/feed_spec.h"
#include "common/result.h"
#include "common/tensor_spec.h"

namespace pinfeed {

using ArenaId = std::array<std::byte, 16>;

// Purpose: memory of the slots, whatever it is made of. Owns the memory. Threads: FillAddress and Deliver
// from any thread, for different slots at once. Errors: a failed delivery is reported to `done`. Invariant:
// the memory a client may have mapped is never unmapped from the client's point of view: it lives until the
// last mapping is gone.
class Arena {
 public:
  virtual ~Arena() = default;

  virtual Backend backend() const = 0;
  // Host memory that workers fill. Precondition: slot < slot_count().
  virtual std::byte* FillAddress(uint32_t slot) = 0;

  // Makes the slot's first `bytes` bytes visible to clients and then calls `done` exactly once, on this or on
  // another thread. The slot must not be written until then. On the host the slot is the client's memory
  // already: `done` is called at once.
  using Done = std::function<void(Status)>;
  virtual void Deliver(uint32_t slot, uint64_t bytes, Done done) = 0;

  // The descriptor that a client maps; -1 when the offer carries a handle instead. Owned by the arena.
  virtual int fd() const = 0;

  const ArenaId& id() const { return id_; }
  uint32_t slot_count() const { return slot_count_; }
  uint64_t slot_stride() const { return slot_stride_; }
  uint64_t bytes() const { return slot_stride_ * slot_count_; }

 protected:
  Arena(const ArenaId& id, uint32_t slot_count, uint64_t slot_stride)
      : id_(id), slot_count_(slot_count), slot_stride_(slot_stride) {}

 private:
  const ArenaId id_;
  const uint32_t slot_count_;
  const uint64_t slot_stride_;
};

}  // namespace pinfeed
