// SPDX-License-Identifier: Apache-2.0
// A budget of memory for batches: of the host, of its pinned part, of a GPU. Every arena is charged here
// before it is made, so that the daemon never holds more than it was given, and no user more than a share.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/base/result.h"
#include "common/base/sync.h"

namespace pinfeed {

class MemoryBudget;

// Purpose: bytes taken from the pool, given back on destruction. Move-only. Must not outlive its pool.
class BudgetLease {
 public:
  BudgetLease() = default;
  BudgetLease(BudgetLease&& other) noexcept;
  BudgetLease& operator=(BudgetLease&& other) noexcept;
  BudgetLease(const BudgetLease&) = delete;
  BudgetLease& operator=(const BudgetLease&) = delete;
  ~BudgetLease();

  uint64_t bytes() const { return bytes_; }

 private:
  friend class MemoryBudget;
  BudgetLease(MemoryBudget* pool, uint64_t bytes, std::optional<uid_t> user)
      : pool_(pool), bytes_(bytes), user_(user) {}
  void Return() noexcept;

  MemoryBudget* pool_ = nullptr;
  uint64_t bytes_ = 0;
  std::optional<uid_t> user_;
};

// Purpose: accounts for memory. Threads: all methods from any thread, none blocks.
// Invariants: 1. used <= capacity; 2. used is the sum of the living leases (checked on destruction: all must
// be home); 3. no user's leases are more than max_per_user.
class MemoryBudget {
 public:
  // For messages: what it is the memory of, and the keys that bound it.
  struct Names {
    std::string what = "the host pool";
    std::string key = "pool_bytes";
    std::string user_key = "user_pool_bytes";
  };
  explicit MemoryBudget(uint64_t capacity_bytes) : MemoryBudget(capacity_bytes, UINT64_MAX, Names()) {}
  MemoryBudget(uint64_t capacity_bytes, uint64_t max_per_user, Names names)
      : capacity_bytes_(capacity_bytes), max_per_user_(max_per_user), names_(std::move(names)) {}
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // For a user, or for the daemon itself. kResourceExhausted, with the bytes asked for, free and in all, when
  // they do not fit.
  Result<BudgetLease> Reserve(uint64_t bytes, std::optional<uid_t> user = std::nullopt) PF_EXCLUDES(mutex_);

  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t max_per_user() const { return max_per_user_; }
  uint64_t used_bytes() const PF_EXCLUDES(mutex_);
  // Of users that have some.
  std::map<uid_t, uint64_t> used_by_user() const PF_EXCLUDES(mutex_);

 private:
  friend class BudgetLease;
  void Return(uint64_t bytes, std::optional<uid_t> user) noexcept PF_EXCLUDES(mutex_);

  const uint64_t capacity_bytes_;
  const uint64_t max_per_user_;
  const Names names_;
  mutable Mutex mutex_;
  uint64_t used_bytes_ PF_GUARDED_BY(mutex_) = 0;
  std::map<uid_t, uint64_t> users_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
