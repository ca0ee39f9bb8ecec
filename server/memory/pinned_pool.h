// SPDX-License-Identifier: Apache-2.0
// The host memory all arenas are cut from. On the host backend it is a budget: every arena is a memfd of its
// own, charged here before it is made, so that the daemon never holds more than it was given.
#pragma once

#include <cstdint>

#include "common/result.h"
#include "common/sync.h"

namespace pinfeed {

class PinnedPool;

// Purpose: bytes taken from the pool, given back on destruction. Move-only. Must not outlive its pool.
class PoolLease {
 public:
  PoolLease() = default;
  PoolLease(PoolLease&& other) noexcept;
  PoolLease& operator=(PoolLease&& other) noexcept;
  PoolLease(const PoolLease&) = delete;
  PoolLease& operator=(const PoolLease&) = delete;
  ~PoolLease();

  uint64_t bytes() const { return bytes_; }

 private:
  friend class PinnedPool;
  PoolLease(PinnedPool* pool, uint64_t bytes) : pool_(pool), bytes_(bytes) {}
  void Return() noexcept;

  PinnedPool* pool_ = nullptr;
  uint64_t bytes_ = 0;
};

// Purpose: accounts for host memory. Threads: all methods from any thread, none blocks.
// Invariants: 1. used <= capacity; 2. used is the sum of the living leases (checked on destruction: all must
// be home).
class PinnedPool {
 public:
  explicit PinnedPool(uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // kResourceExhausted, with the bytes asked for, free and in all, when they do not fit.
  Result<PoolLease> Reserve(uint64_t bytes) PF_EXCLUDES(mutex_);

  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const PF_EXCLUDES(mutex_);

 private:
  friend class PoolLease;
  void Return(uint64_t bytes) noexcept PF_EXCLUDES(mutex_);

  const uint64_t capacity_bytes_;
  mutable Mutex mutex_;
  uint64_t used_bytes_ PF_GUARDED_BY(mutex_) = 0;
};

}  // namespace pinfeed
