// SPDX-License-Identifier: Apache-2.0
// The arena of the GPU backend: pinned slots that workers fill, and as many device slots that clients map.
#pragma once

#include <memory>
#include <vector>

#include "common/cuda/device_memory.h"
#include "server/device/copy_engine.h"
#include "server/device/pinned_region.h"
#include "server/memory/arena.h"
#include "server/memory/pinned_pool.h"

namespace pinfeed {

// Bytes behind the slots that hold the arena's id, for the client to read back through its mapping.
inline constexpr uint64_t kArenaTailBytes = kSlotAlignment;

// Purpose: see Arena. Owns: device memory, staging slots, its place at the copy engine, its charges.
// Invariant: the device memory is written by the engine's copies alone, the id before the arena is shown to
// anybody. A dead client's mapping keeps the memory alive (cuMemCreate), so that letting go of it needs no
// wait.
class CudaArena final : public Arena {
 public:
  // kResourceExhausted with the numbers when device or pinned memory does not fit.
  static Result<std::unique_ptr<CudaArena>> Create(const std::shared_ptr<const CudaDevice>& device,
                                                   const BatchLayout& layout, uint32_t slot_count,
                                                   PinnedRegion& region, PinnedPool& device_pool,
                                                   CopyEngine& engine);

  Backend backend() const override { return Backend::kVmmFd; }
  std::byte* FillAddress(uint32_t slot) override { return staging_[slot].data(); }
  void Deliver(uint32_t slot, uint64_t bytes, Done done) override;
  void SetWaiting(const std::shared_ptr<ReleaseReader>& reader, bool waiting) override {
    lane_.SetWaiting(reader, waiting);
  }
  int fd() const override { return fd_.get(); }
  uint64_t mapped_bytes() const override { return memory_.bytes(); }

 private:
  CudaArena(const ArenaId& id, uint32_t slot_count, uint64_t slot_stride, PoolLease lease,
            DeviceMemory memory, UniqueFd fd, std::vector<PinnedBlock> staging, CopyEngine& engine)
      : Arena(id, slot_count, slot_stride),
        lease_(std::move(lease)),
        memory_(std::move(memory)),
        fd_(std::move(fd)),
        staging_(std::move(staging)),
        lane_(engine) {}

  PoolLease lease_;
  DeviceMemory memory_;
  UniqueFd fd_;
  std::vector<PinnedBlock> staging_;
  CopyEngine::Lane lane_;
};

}  // namespace pinfeed
