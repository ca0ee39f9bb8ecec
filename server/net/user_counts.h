// SPDX-License-Identifier: Apache-2.0
// What each user has of something that all share. In: amounts. Out: their sums.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "common/base/sync.h"

namespace pinfeed {

// Purpose: sums by user. Threads: any, also for what Add returns. Errors: none.
class UserCounts {
 public:
  // Counted until it is destroyed, which may be after the counts.
  using Counted = std::shared_ptr<const void>;

  Counted Add(uid_t user, uint64_t amount) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    std::erase_if(users_, [](const auto& one) { return one.second.expired(); });
    std::shared_ptr<std::atomic<uint64_t>> sum = users_[user].lock();
    if (sum == nullptr) users_[user] = sum = std::make_shared<std::atomic<uint64_t>>(0);
    *sum += amount;
    return Counted(sum.get(), [sum, amount](const void*) { *sum -= amount; });
  }
  uint64_t Of(uid_t user) const PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto found = users_.find(user);
    const auto sum = found == users_.end() ? nullptr : found->second.lock();
    return sum == nullptr ? 0 : sum->load();
  }

 private:
  mutable Mutex mutex_;
  std::map<uid_t, std::weak_ptr<std::atomic<uint64_t>>> users_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
