// SPDX-License-Identifier: Apache-2.0
// The arena of the GPU backends. In: samples that workers write to pinned memory. Out: the same bytes in
// device slots that clients map.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/cuda/device_memory.h"
#include "server/memory/arena.h"
#include "server/memory/gpu/copy_engine.h"
#include "server/memory/gpu/device_memory_quarantine.h"
#include "server/memory/gpu/pinned_region.h"
#include "server/memory/gpu/staging_memory.h"
#include "server/memory/memory_budget.h"

namespace pinfeed {

// The size of the arena's id, which follows the slots. The client reads the id through its mapping, to check
// that it has mapped the right memory.
inline constexpr uint64_t kArenaIdBytes = kSlotAlignment;

// Whether an arena has its own pinned memory for workers. Without it, the bytes come from another arena's
// staging memory.
enum class Staging { kPinned, kNone };

// Purpose: see Arena.
// Owns: device memory, staging memory, its lanes in the copy engines, its charges.
// Borrows: the quarantine, which outlives it and takes over memory that clients may still have mapped. The
// copy engines and the cache share outlive it too.
// Threads: see Arena; Fetch, FetchFrom and AllowReads from any thread.
// Errors: Create fails when memory is short or the driver reports an error. A copy that fails is reported by
// its `done`.
// Invariants:
// 1. Only the engines' copies write the device memory. The id and the zeros are written before any client can
//    map it.
// 2. It never exposes a byte that is older than the arena.
class CudaArena final : public Arena {
 public:
  struct Parts {
    PinnedRegion& region;
    MemoryBudget& device_pool;
    CopyEngine& engine;
    CopyEngine* peer_engine;  // of copies from other GPUs; null: there are none
    DeviceMemoryQuarantine& quarantine;
    CacheShare& cache;
    uid_t user;  // charged for the memory
  };
  // kResourceExhausted, with the numbers, if there is too little device or pinned memory.
  static Result<std::unique_ptr<CudaArena>> Create(const std::shared_ptr<const CudaDevice>& device,
                                                   Backend backend, const BatchLayout& layout,
                                                   uint32_t slot_count, Staging staging, const Parts& parts);
  ~CudaArena() override;

  Backend backend() const override { return backend_; }
  uint32_t piece_samples() const override { return staging_->piece_samples(); }
  bool Take(Piece* piece) override { return staging_->Take(piece); }
  void Return(const Piece& piece) override { staging_->Return(piece); }
  std::byte* FillAddress(const Piece& piece, size_t tensor) override {
    return staging_->FillAddress(piece, tensor);
  }
  void Deliver(const Piece& piece, const SlotRange& range, Done done) override;
  void EndFilling() override { staging_.reset(); }
  void SetWaiting(const std::shared_ptr<ReleaseReader>& reader, bool waiting) override {
    lane_.SetWaiting(reader, waiting);
  }
  int fd() const override { return fd_.get(); }
  std::optional<std::array<std::byte, 64>> ipc_handle() const override { return handle_; }
  uint64_t mapped_bytes() const override { return memory_.bytes(); }
  void SetRemainingMappers(std::vector<ClientProcess> clients) override {
    remaining_mappers_ = std::move(clients);
  }
  Result<const Arena*> PartOn(const std::string& gpu_uuid) override;

  // Used by StripedArena, for groups on several GPUs.
  const CudaDevice& device() const { return engine_.device(); }
  const StagingMemory& staging() const { return *staging_; }
  // Copies to a slot: from pinned memory, or the same bytes from the same slot of a peer. The peer's
  // AllowReads must have succeeded for our device. `done` is called as in Deliver. Precondition: `copies` is
  // not empty.
  void Fetch(uint32_t slot, const std::vector<StagedCopy>& copies, Done done);
  void FetchFrom(const CudaArena& peer, uint32_t slot, const std::vector<StagedCopy>& copies, Done done);
  // Lets another GPU's copy engine read this memory. kUnavailable when that is impossible.
  Status AllowReads(const CudaDevice& reader) const;

 private:
  CudaArena(const ArenaId& id, Backend backend, uint32_t slot_count, const BatchLayout& layout,
            BudgetLease lease, const Parts& parts)
      : Arena(id, slot_count, layout),
        backend_(backend),
        quarantine_(parts.quarantine),
        lease_(std::move(lease)),
        engine_(parts.engine),
        lane_(parts.engine.queue()) {
    if (parts.peer_engine != nullptr) peer_lane_.emplace(parts.peer_engine->queue());
  }
  Status Allocate(const std::shared_ptr<const CudaDevice>& device, uint64_t bytes);
  // Clears the memory, because the driver does not guarantee the contents of new memory.
  Status ClearDevice(const CudaDevice& device, uint64_t bytes);
  CUdeviceptr Address(uint32_t slot) const { return memory_.address() + slot * slot_stride(); }

  const Backend backend_;
  DeviceMemoryQuarantine& quarantine_;
  BudgetLease lease_;
  DeviceMemory memory_;
  UniqueFd fd_;                                   // kVmmFd
  std::optional<IpcHandle> handle_;               // kCudaIpc
  std::vector<ClientProcess> remaining_mappers_;  // may have the memory mapped
  std::unique_ptr<StagingMemory> staging_;        // null: Staging::kNone
  const CopyEngine& engine_;
  CopyQueue::Lane lane_;
  std::optional<CopyQueue::Lane> peer_lane_;
};

}  // namespace pinfeed
