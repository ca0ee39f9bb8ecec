// SPDX-License-Identifier: Apache-2.0
// The arena of the host backend: a sealed memfd. Workers fill the same memory that clients read.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/sync.h"
#include "common/os/memfd.h"
#include "common/wire/shared_page.h"
#include "server/memory/arena.h"
#include "server/memory/host_memory_ledger.h"
#include "server/memory/host_memory_quarantine.h"
#include "server/memory/memory_budget.h"

namespace pinfeed {

// Purpose: see Arena. Delivering a piece copies nothing.
// Owns: the memory file, its mapping, its charges. Borrows: the quarantine, which outlives it and takes over
// the charge of memory that a process still uses.
// Threads: see Arena; a leaf lock is held while a slot is claimed or allocated as a whole.
// Errors: Create and Prepare fail when the host lacks memory. The next Prepare tries again.
// Invariants:
// 1. Clients can map the memory only for reading if it is shared.
// 2. Nothing is written to a part of a slot before that part is allocated, nor after a process has given any
//    back: it would take memory that the host was not asked for.
class HostArena final : public Arena {
 public:
  // Charges `pool` and maps slot_count slots. Workers allocate the slots' memory in parallel when they first
  // fill it, so the first batch waits only for its own slot. With `shared`, the memory is sealed so that
  // clients can only map it for reading. If a process still uses the memory at the end, its charge moves to
  // `quarantine`, which outlives the arena; with null, the charge is released.
  // kInvalidArgument when slot_count is not within 1..kMaxSlots. kResourceExhausted, with numbers,
  // when the pool, the user's limit or the host's memory is exceeded.
  static Result<std::unique_ptr<HostArena>> Create(const BatchLayout& layout, uint32_t slot_count,
                                                   bool shared, MemoryBudget& pool,
                                                   std::optional<uid_t> user = std::nullopt,
                                                   HostMemoryQuarantine* quarantine = nullptr);
  ~HostArena() override;

  Backend backend() const override { return Backend::kHost; }
  std::byte* FillAddress(const Piece& piece, size_t tensor) override {
    const TensorPlace& place = layout().tensors[tensor];
    return memory_.data() + piece.slot * slot_stride() + place.offset + piece.begin * place.sample_bytes;
  }
  Status Prepare(const Piece& piece, uint32_t begin, uint32_t end) override PF_EXCLUDES(mutex_);
  void Deliver(const Piece& piece, const SlotRange& range, Done done) override;
  // Prepares the first samples of a slot that a client fills, so that nothing of them is delivered.
  Status PrepareForClient(uint32_t slot, uint32_t samples) PF_EXCLUDES(mutex_);
  // kFailedPrecondition if memory that was allocated is not any more. Allocates none.
  Status CheckNothingGivenBack() const;
  // Has no effect on a shared arena: the kernel punches no holes into memory sealed against writers.
  void Discard() override { DiscardMemfd(fd_.get(), bytes()); }
  int fd() const override { return client_fd_.get(); }

 private:
  HostArena(const ArenaId& id, uint32_t slot_count, const BatchLayout& layout, BudgetLease lease,
            HostMemoryLedger::Reservation reservation, UniqueFd fd, UniqueFd client_fd, Mapping memory,
            HostMemoryQuarantine* quarantine, bool shared)
      : Arena(id, slot_count, layout),
        lease_(std::move(lease)),
        reservation_(std::move(reservation)),
        quarantine_(quarantine),
        shared_(shared),
        fd_(std::move(fd)),
        client_fd_(std::move(client_fd)),
        memory_(std::move(memory)),
        huge_page_states_(memory_.size() / kHugePageBytes) {}

  // How far a slot is allocated, in samples from its first one. Only whole batches count: the samples of one
  // are prepared in any order.
  struct SlotMemory {
    std::atomic<bool> claimed{false};  // the allocation may begin
    std::atomic<bool> packed_ready{false};
    std::atomic<uint32_t> prepared{0};   // by the batch that is being filled, or an earlier one
    std::atomic<uint32_t> allocated{0};  // by those that were delivered
  };
  Status Claim(uint32_t slot) PF_EXCLUDES(mutex_);
  // Allocates the memory of the slot's packed tensors, once: a sample's rows may come anywhere in it.
  Status PreparePacked(uint32_t slot) PF_EXCLUDES(mutex_);
  Status AllocateSlot(uint32_t slot) PF_EXCLUDES(mutex_);
  // Returns once the huge pages that have a part of this range of a piece were allocated, or cannot be. They
  // may reach into neighbouring slots. Without the wait, small pages would be allocated, and copied into the
  // huge one that another thread makes.
  void PrepareHugePages(const std::byte* begin, uint64_t bytes, const std::byte* end_of_piece);
  // Allocates a huge page, once. False: another thread is doing that.
  bool MakeHugePage(uint64_t page);
  // Records that the first `samples` of the slot are allocated.
  void SetAllocated(uint32_t slot, uint32_t samples);
  // Of the first `samples` of a slot, without those that share a page with others.
  uint64_t BytesInWholePages(uint32_t slot, uint32_t samples) const;

  BudgetLease lease_;
  HostMemoryLedger::Reservation reservation_;
  Mutex mutex_;  // leaf lock, held while a slot is allocated or claimed
  std::array<SlotMemory, kMaxSlots> slots_;
  std::atomic<uint64_t> allocated_bytes_{0};  // at least; in whole pages
  HostMemoryQuarantine* const quarantine_;
  const bool shared_;
  UniqueFd fd_;
  UniqueFd client_fd_;  // opened separately, so that its users are told apart from ours
  Mapping memory_;
  enum class HugePage : uint32_t { kNone, kBeingMade, kTried };
  std::vector<std::atomic<HugePage>> huge_page_states_;  // without an incomplete last one
  std::atomic<bool> huge_pages_{true};                   // false once the kernel has none
};

}  // namespace pinfeed
