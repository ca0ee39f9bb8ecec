// SPDX-License-Identifier: Apache-2.0
#include "server/memory/memory_budget.h"

#include <string>

#include "common/base/byte_size.h"

namespace pinfeed {

void BudgetTraits::Close(const Handle& reserved) noexcept {
  reserved.pool->Return(reserved.bytes, reserved.user);
}

MemoryBudget::~MemoryBudget() {
  PF_CHECK(used_bytes() == 0, "the pool is destroyed while leases are out");
}

MemoryBudget::Room MemoryBudget::RoomForLocked(uint64_t bytes, std::optional<uid_t> user) const {
  const bool limited = user && max_per_user_ < capacity_bytes_;
  if (bytes > capacity_bytes_ || (limited && bytes > max_per_user_)) return Room::kNever;
  if (limited && UsedByLocked(*user) > max_per_user_ - bytes) return Room::kOfUser;
  return bytes > capacity_bytes_ - used_bytes_ ? Room::kOfAnyUser : Room::kFree;
}

Result<BudgetLease> MemoryBudget::Reserve(uint64_t bytes, std::optional<uid_t> user) {
  MutexLock lock(mutex_);
  const Room room = RoomForLocked(bytes, user);
  if (bytes > capacity_bytes_) {
    return ResourceExhausted("reserve " + ExactByteSize(bytes) + " of " + names_.what + ", which has " +
                             ExactByteSize(capacity_bytes_) +
                             " in total; ask for a smaller batch or fewer slots, or give the daemon more " +
                             names_.key);
  }
  if (room == Room::kNever || room == Room::kOfUser) {
    return ResourceExhausted(
        names_.user_key + ": user " + std::to_string(*user) + " has " + ExactByteSize(UsedByLocked(*user)) +
        " of " + names_.what + ", and " + ExactByteSize(bytes) + " more would be above the " +
        ExactByteSize(max_per_user_) +
        " that a user may have; close a feed of this user (`pinfeed status` lists them), ask for a smaller "
        "batch or fewer slots, or have the operator raise " +
        names_.user_key);
  }
  if (room == Room::kOfAnyUser) {
    return ResourceExhausted("reserve " + ExactByteSize(bytes) + " of " + names_.what + ": " +
                             ExactByteSize(capacity_bytes_ - used_bytes_) + " of its " +
                             ByteSize(capacity_bytes_) +
                             " are free, the rest is in use by the feeds that "
                             "`pinfeed status` lists; close one of them, ask for a smaller batch or fewer "
                             "slots, or give the daemon more " +
                             names_.key);
  }
  used_bytes_ += bytes;
  if (user) users_[*user] += bytes;
  return BudgetLease({this, bytes, user});
}

uint64_t MemoryBudget::used_bytes() const {
  MutexLock lock(mutex_);
  return used_bytes_;
}

std::map<uid_t, uint64_t> MemoryBudget::used_by_user() const {
  MutexLock lock(mutex_);
  return users_;
}

void MemoryBudget::Return(uint64_t bytes, std::optional<uid_t> user) noexcept {
  MutexLock lock(mutex_);
  used_bytes_ -= bytes;
  if (!user) return;
  const auto found = users_.find(*user);
  found->second -= bytes;
  if (found->second == 0) users_.erase(found);
}

}  // namespace pinfeed
