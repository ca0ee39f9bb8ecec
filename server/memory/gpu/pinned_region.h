// SPDX-License-Identifier: Apache-2.0
// Host memory that GPUs read at the full speed of their link: pinned once at the start, then allocated in
// blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/base/unique_handle.h"
#include "common/cuda/device_memory.h"
#include "server/memory/memory_budget.h"

namespace pinfeed {

class PinnedRegion;

// Private memory without a file, mapped by mmap(2).
struct AnonymousPages {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  bool operator==(const AnonymousPages&) const = default;
};

struct AnonymousPagesTraits {
  using Handle = AnonymousPages;
  static constexpr Handle Null() { return {}; }
  static void Close(Handle pages) noexcept;
};
using UniquePages = UniqueHandle<AnonymousPagesTraits>;

struct PinnedBlockTraits {
  struct Handle {
    PinnedRegion* region = nullptr;
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    bool operator==(const Handle&) const = default;
  };
  static constexpr Handle Null() { return {}; }
  static void Close(const Handle& block) noexcept;
};

// Purpose: the staging memory of one arena: blocks that were taken together. Owns their bytes and returns
// them on destruction. Move-only. Must not outlive its region.
class PinnedBlocks {
 public:
  // Blocks in the order of the requested sizes.
  std::byte* operator[](size_t block) const { return blocks_[block].get().data; }

 private:
  friend class PinnedRegion;
  BudgetLease lease_;  // for all blocks; returned after them: what is not charged can be taken
  std::vector<UniqueHandle<PinnedBlockTraits>> blocks_;
};

// Purpose: the pinned memory of one NUMA node.
// Owns: the mapping, its registration with the driver, and its charge to the pool.
// Threads: take and return blocks from any thread; nothing blocks. Errors: Create says what does not fit.
// Invariants:
// 1. Every block lies within one registration, so that a single copy can cover it.
// 2. Blocks do not overlap.
class PinnedRegion {
 public:
  struct Options {
    uint64_t bytes = 0;
    double user_share = 1;  // limit per user
    int numa_node = -1;     // to bind to; -1: no binding
    unsigned threads = 1;   // number of threads that fault it in
    // See DeviceOptions.
    std::function<void(uint64_t bytes, uint64_t total)> on_progress;
  };
  static Result<std::unique_ptr<PinnedRegion>> Create(const std::shared_ptr<const CudaDevice>& device,
                                                      const Options& options, BudgetLease lease);
  ~PinnedRegion();

  // Takes blocks of these sizes, all or none. kResourceExhausted, with the total numbers, when they do not
  // fit.
  Result<PinnedBlocks> Take(const std::vector<uint64_t>& sizes, uid_t user) PF_EXCLUDES(mutex_);
  uint64_t used_bytes() const { return account_.used_bytes(); }
  uint64_t max_per_user() const { return account_.max_per_user(); }
  std::map<uid_t, uint64_t> used_by_user() const { return account_.used_by_user(); }

 private:
  friend struct PinnedBlockTraits;
  PinnedRegion(UniquePages pages, const Options& options, BudgetLease lease);
  void FaultIn(const Options& options);
  Status Register(const std::shared_ptr<const CudaDevice>& device, const Options& options);
  // Returns null when no free range is long enough.
  std::byte* TakeRangeLocked(uint64_t bytes) PF_REQUIRES(mutex_);
  void ReturnRange(std::byte* data, uint64_t bytes) PF_EXCLUDES(mutex_);

  std::byte* const data_;  // of pages_
  const uint64_t bytes_;
  // Destroyed in reverse: the pages are unregistered, then unmapped, then no longer charged.
  BudgetLease lease_;
  MemoryBudget account_;  // charges of the blocks
  const UniquePages pages_;
  std::vector<HostRegistration> registrations_;
  mutable Mutex mutex_;
  // Free ranges: offset -> bytes. Neighbours are merged, but never across two registrations.
  std::map<uint64_t, uint64_t> free_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
