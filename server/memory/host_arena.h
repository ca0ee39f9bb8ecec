// SPDX-License-Identifier: Apache-2.0
// The arena of the host backend: a sealed memfd. The slot a worker fills is the memory the client reads.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>

#include "common/base/sync.h"
#include "common/os/memfd.h"
#include "common/wire/shared_page.h"
#include "server/memory/arena.h"
#include "server/memory/host_memory_ledger.h"
#include "server/memory/host_memory_quarantine.h"
#include "server/memory/memory_budget.h"

namespace pinfeed {

class HostArena final : public Arena {
 public:
  // Charges `pool` and maps slot_count slots. Their memory is made by the workers who first fill it, side by
  // side: the first batch waits for its own alone. With `shared` the memory is sealed so that
  // clients can only map it for reading. kInvalidArgument when slot_count is not within kMinSlots..kMaxSlots;
  // kResourceExhausted with the numbers when it does not fit, is more than the user may have, or the host has
  // not the memory. When somebody has the memory at the end, `kept` (which outlives the arena) gets its
  // charge; null: it goes back.
  static Result<std::unique_ptr<HostArena>> Create(const BatchLayout& layout, uint32_t slot_count,
                                                   bool shared, MemoryBudget& pool,
                                                   std::optional<uid_t> user = std::nullopt,
                                                   HostMemoryQuarantine* kept = nullptr);
  ~HostArena() override;

  Backend backend() const override { return Backend::kHost; }
  std::byte* FillAddress(const Piece& piece, size_t tensor) override {
    const TensorPlace& place = layout().tensors[tensor];
    return memory_.data() + piece.slot * slot_stride() + place.offset + piece.begin * place.sample_bytes;
  }
  Status Prepare(const Piece& piece, uint32_t begin, uint32_t end) override PF_EXCLUDES(mutex_);
  void Deliver(const Piece& piece, const SlotRange& landing, Done done) override;
  // Not of a shared arena: the kernel punches no hole into memory that is sealed against writers.
  void Discard() override { DiscardMemfd(fd_.get(), bytes()); }
  int fd() const override { return client_fd_.get(); }

 private:
  HostArena(const ArenaId& id, uint32_t slot_count, const BatchLayout& layout, BudgetLease lease,
            HostMemoryLedger::Reservation promise, UniqueFd fd, UniqueFd client_fd, Mapping memory,
            HostMemoryQuarantine* kept)
      : Arena(id, slot_count, layout),
        lease_(std::move(lease)),
        promise_(std::move(promise)),
        kept_(kept),
        fd_(std::move(fd)),
        client_fd_(std::move(client_fd)),
        memory_(std::move(memory)) {}

  // Of a slot: none of it, as much as a worker gets to, as much as a batch took, all of it.
  enum class SlotMemory : uint8_t { kNone, kTaking, kTaken, kWhole };
  Status Claim(uint32_t slot) PF_EXCLUDES(mutex_);
  Status AllocateSlot(uint32_t slot) PF_EXCLUDES(mutex_);
  // What was claimed is there.
  void SetTaken(uint32_t slot, SlotMemory memory);

  BudgetLease lease_;
  HostMemoryLedger::Reservation promise_;
  Mutex mutex_;  // a leaf: held while a slot is allocated or claimed
  std::array<std::atomic<SlotMemory>, kMaxSlots> slots_{};
  HostMemoryQuarantine* const kept_;
  UniqueFd fd_;
  UniqueFd client_fd_;  // an opening of its own: its users are not taken for us
  Mapping memory_;
};

}  // namespace pinfeed
