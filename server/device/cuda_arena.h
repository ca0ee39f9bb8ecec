// SPDX-License-Identifier: Apache-2.0
// The arena of the GPU backend: pinned slots that workers fill, and as many device slots that clients map.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/cuda/device_memory.h"
#include "common/shared_page.h"
#include "common/sync.h"
#include "server/device/copy_engine.h"
#include "server/device/lingering.h"
#include "server/device/pinned_region.h"
#include "server/memory/arena.h"
#include "server/memory/pinned_pool.h"

namespace pinfeed {

// Bytes behind the slots that hold the arena's id, for the client to read back through its mapping.
inline constexpr uint64_t kArenaTailBytes = kSlotAlignment;

// Whether an arena has pinned slots, which workers fill; without, its bytes come from another arena's.
enum class Staging { kPinned, kNone };

// Purpose: see Arena. Owns: device memory, staging slots, its place at the copy engine, its charges.
// Borrows: the quarantine, which outlives it and gets the memory that clients left mapped. Invariants: 1.
// the device memory is written by the engine's copies alone, the id and zeros before the arena is shown to
// anybody; 2. no byte of it, or of its staging, is from before the arena.
class CudaArena final : public Arena {
 public:
  struct Parts {
    PinnedRegion& region;
    PinnedPool& device_pool;
    CopyEngine& engine;
    Lingering& lingering;
    uid_t user;  // that it is charged to
  };
  // kResourceExhausted with the numbers when device or pinned memory does not fit.
  static Result<std::unique_ptr<CudaArena>> Create(const std::shared_ptr<const CudaDevice>& device,
                                                   Backend backend, const BatchLayout& layout,
                                                   uint32_t slot_count, Staging staging, const Parts& parts);
  ~CudaArena() override;

  Backend backend() const override { return backend_; }
  std::byte* FillAddress(uint32_t slot) override { return staging_[slot].data(); }
  // Clears the staging slot, which may have been another user's, and is copied whole: gaps between tensors
  // and behind a short batch as well.
  Status Prepare(uint32_t slot) override PF_EXCLUDES(mutex_);
  void Deliver(uint32_t slot, uint64_t bytes, Done done) override;
  void SetWaiting(const std::shared_ptr<ReleaseReader>& reader, bool waiting) override {
    lane_.SetWaiting(reader, waiting);
  }
  int fd() const override { return fd_.get(); }
  std::optional<std::array<std::byte, 64>> ipc_handle() const override { return handle_; }
  uint64_t mapped_bytes() const override { return memory_.bytes(); }
  void LeaveTo(std::vector<ClientProcess> clients) override { heirs_ = std::move(clients); }
  Result<const Arena*> At(const std::string& gpu_uuid) override;

  // What a group on several GPUs is made of: see StripedArena.
  struct Range {
    uint64_t offset = 0;  // within a slot
    uint64_t bytes = 0;
  };
  const CudaDevice& device() const { return lane_.device(); }
  // Copies that range of a slot from `slot_bytes`, a pinned slot, or from the same slot of a peer whose
  // AllowReads for our device gave OK; `done` as in Deliver.
  void Fetch(uint32_t slot, Range range, const std::byte* slot_bytes, Done done);
  void FetchFrom(const CudaArena& peer, uint32_t slot, Range range, Done done);
  // Lets another GPU's copy engine read this memory. kUnavailable when it cannot.
  Status AllowReads(const CudaDevice& reader) const;

 private:
  CudaArena(const ArenaId& id, Backend backend, uint32_t slot_count, uint64_t slot_stride, PoolLease lease,
            const Parts& parts)
      : Arena(id, slot_count, slot_stride),
        backend_(backend),
        lingering_(parts.lingering),
        lease_(std::move(lease)),
        lane_(parts.engine) {}
  Status Fill(const std::shared_ptr<const CudaDevice>& device, PinnedRegion* region, uint64_t bytes,
              uid_t user);
  // The driver promises nothing about what new memory holds.
  Status ClearDevice(const CudaDevice& device, uint64_t bytes);
  CUdeviceptr Address(uint32_t slot) const { return memory_.address() + slot * slot_stride(); }

  const Backend backend_;
  Lingering& lingering_;
  PoolLease lease_;
  DeviceMemory memory_;
  UniqueFd fd_;                       // kVmmFd
  std::optional<IpcHandle> handle_;   // kCudaIpc
  std::vector<ClientProcess> heirs_;  // may have the memory mapped
  std::vector<PinnedBlock> staging_;
  Mutex mutex_;  // a leaf: held while a staging slot is cleared
  std::array<std::atomic<bool>, kMaxSlots> cleared_{};
  CopyEngine::Lane lane_;
};

}  // namespace pinfeed
