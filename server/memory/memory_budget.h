// SPDX-License-Identifier: Apache-2.0
// A memory budget for batches: of the host, of its pinned part, or of a GPU. Every arena is charged before it
// is created. The daemon therefore never exceeds its limit, and no user exceeds theirs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

class MemoryBudget;

struct BudgetTraits {
  struct Handle {
    MemoryBudget* pool = nullptr;
    uint64_t bytes = 0;
    std::optional<uid_t> user;
    bool operator==(const Handle&) const = default;
  };
  static constexpr Handle Null() { return {}; }
  static void Close(const Handle& reserved) noexcept;
};

// Purpose: bytes reserved from a budget, returned on destruction. Move-only. Must not outlive its budget.
class BudgetLease {
 public:
  BudgetLease() = default;

  uint64_t bytes() const { return reserved_.get().bytes; }

 private:
  friend class MemoryBudget;
  explicit BudgetLease(const BudgetTraits::Handle& reserved) : reserved_(reserved) {}

  UniqueHandle<BudgetTraits> reserved_;
};

// Purpose: accounts for memory. Owns: only the sums; the memory is its users'. It outlives its leases.
// Threads: all methods from any thread; none blocks. Errors: only Reserve fails, and then changes nothing.
// Invariants:
// 1. used <= capacity.
// 2. used is the sum of the live leases. The destructor checks that all have been returned.
// 3. No user's leases exceed max_per_user.
class MemoryBudget {
 public:
  // For messages: the name of the memory, and the keys that limit it.
  struct Names {
    std::string what = "the host pool";
    std::string key = "pool_bytes";
    std::string user_key = "user_pool_bytes";
  };
  explicit MemoryBudget(uint64_t capacity_bytes) : MemoryBudget(capacity_bytes, UINT64_MAX, Names()) {}
  MemoryBudget(uint64_t capacity_bytes, uint64_t max_per_user, Names names)
      : capacity_bytes_(capacity_bytes), max_per_user_(max_per_user), names_(std::move(names)) {}
  ~MemoryBudget();

  // Whose leases would have to end before so many bytes fit: nobody's; the user's own; any; those of all are
  // not enough.
  enum class Room : uint8_t { kFree, kOfUser, kOfAnyUser, kNever };
  Room RoomFor(uint64_t bytes, std::optional<uid_t> user) const PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return RoomForLocked(bytes, user);
  }
  // Reserves for a user, or for the daemon itself. kResourceExhausted, with the requested, free and total
  // bytes, when it does not fit.
  Result<BudgetLease> Reserve(uint64_t bytes, std::optional<uid_t> user = std::nullopt) PF_EXCLUDES(mutex_);

  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t max_per_user() const { return max_per_user_; }
  uint64_t used_bytes() const PF_EXCLUDES(mutex_);
  // Bytes by user, for users with any.
  std::map<uid_t, uint64_t> used_by_user() const PF_EXCLUDES(mutex_);

 private:
  friend struct BudgetTraits;
  void Return(uint64_t bytes, std::optional<uid_t> user) noexcept PF_EXCLUDES(mutex_);
  Room RoomForLocked(uint64_t bytes, std::optional<uid_t> user) const PF_REQUIRES(mutex_);
  uint64_t UsedByLocked(uid_t user) const PF_REQUIRES(mutex_) {
    const auto found = users_.find(user);
    return found == users_.end() ? 0 : found->second;
  }

  const uint64_t capacity_bytes_;
  const uint64_t max_per_user_;
  const Names names_;
  mutable Mutex mutex_;
  uint64_t used_bytes_ PF_GUARDED_BY(mutex_) = 0;
  std::map<uid_t, uint64_t> users_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
