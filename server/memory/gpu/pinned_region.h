// SPDX-License-Identifier: Apache-2.0
// Host memory that GPUs read at the full speed of their link: pinned once at the start, cut into blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/cuda/device_memory.h"
#include "server/memory/memory_budget.h"

namespace pinfeed {

class PinnedRegion;

// Purpose: staging memory of one arena: blocks that were taken together. Owns their bytes; gives them back on
// destruction. Move-only. Must not outlive its region.
class PinnedBlocks {
 public:
  PinnedBlocks() = default;
  PinnedBlocks(PinnedBlocks&& other) noexcept { *this = std::move(other); }
  PinnedBlocks& operator=(PinnedBlocks&& other) noexcept;
  ~PinnedBlocks();

  // In the order in which they were asked for.
  std::byte* operator[](size_t block) const { return blocks_[block].data; }

 private:
  friend class PinnedRegion;
  struct Block {
    std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  PinnedBlocks(PinnedRegion* region, BudgetLease lease) : region_(region), lease_(std::move(lease)) {}
  void Return() noexcept;

  PinnedRegion* region_ = nullptr;
  std::vector<Block> blocks_;
  BudgetLease lease_;  // of all of them
};

// Purpose: the pinned memory of one NUMA node. Owns: the mapping, its registration with the driver, its
// charge to the pool. Threads: Take and giving back from any thread, none blocks. Errors: Create says what
// does not fit. Invariants: 1. every block lies in one registered piece, so that one copy can take all of it;
// 2. blocks do not overlap.
class PinnedRegion {
 public:
  struct Options {
    uint64_t bytes = 0;
    double user_share = 1;  // of it, for each user
    int numa_node = -1;     // to be bound to; -1: wherever the kernel likes
    unsigned threads = 1;   // that fault it in
    // See DeviceOptions.
    std::function<void(uint64_t bytes, uint64_t total)> on_progress;
  };
  static Result<std::unique_ptr<PinnedRegion>> Create(const std::shared_ptr<const CudaDevice>& device,
                                                      const Options& options, BudgetLease lease);
  ~PinnedRegion();
  PinnedRegion(const PinnedRegion&) = delete;
  PinnedRegion& operator=(const PinnedRegion&) = delete;

  // Blocks of these sizes, all or none. kResourceExhausted with the numbers, of all together.
  Result<PinnedBlocks> Take(const std::vector<uint64_t>& sizes, uid_t user) PF_EXCLUDES(mutex_);
  uint64_t bytes() const { return bytes_; }
  uint64_t used_bytes() const { return account_.used_bytes(); }
  uint64_t max_per_user() const { return account_.max_per_user(); }
  std::map<uid_t, uint64_t> used_by_user() const { return account_.used_by_user(); }

 private:
  friend class PinnedBlocks;
  PinnedRegion(std::byte* data, uint64_t bytes, const Options& options, BudgetLease lease);
  void FaultIn(const Options& options);
  Status Register(const std::shared_ptr<const CudaDevice>& device, const Options& options);
  // Null when no free range is as long.
  std::byte* TakeRangeLocked(uint64_t bytes) PF_REQUIRES(mutex_);
  void ReturnRangeLocked(std::byte* data, uint64_t bytes) PF_REQUIRES(mutex_);

  std::byte* const data_;
  const uint64_t bytes_;
  BudgetLease lease_;
  MemoryBudget account_;  // of the blocks
  std::vector<HostRegistration> registrations_;
  mutable Mutex mutex_;
  // Free ranges: offset -> bytes; neighbours are merged, but never over the border of a registration.
  std::map<uint64_t, uint64_t> free_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
