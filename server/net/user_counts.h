// SPDX-License-Identifier: Apache-2.0
// What each user has of something that all share. In: amounts. Out: their sums, and refusals.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>

#include "common/base/sync.h"

namespace pinfeed {

// Purpose: sums by user, each with a limit. Threads: any, also for what it returns. Errors: none.
class UserCounts {
 public:
  // Counted until it is destroyed, which may be after the counts. Null: nothing was counted.
  using Counted = std::shared_ptr<const void>;
  using Clock = std::chrono::steady_clock;

  // Null if the user has more than `limit` already: a user has at most `limit` and one amount.
  Counted TryAdd(uid_t user, uint64_t amount, uint64_t limit) {
    return AddBy(user, amount, limit, Clock::time_point::min());
  }
  // The same, but waits until the user has less.
  Counted AddBy(uid_t user, uint64_t amount, uint64_t limit, Clock::time_point deadline) {
    {
      const MutexLock lock(sums_->mutex);
      while (sums_->of[user] > limit)
        if (!sums_->less.WaitUntil(sums_->mutex, deadline) && sums_->of[user] > limit) return nullptr;
      sums_->of[user] += amount;
    }
    return Counted(sums_.get(), [sums = sums_, user, amount](const void*) {
      const MutexLock lock(sums->mutex);
      if ((sums->of[user] -= amount) == 0) sums->of.erase(user);
      sums->less.NotifyAll();
    });
  }
  uint64_t Of(uid_t user) const {
    const MutexLock lock(sums_->mutex);
    const auto found = sums_->of.find(user);
    return found == sums_->of.end() ? 0 : found->second;
  }

 private:
  struct Sums {
    Mutex mutex;
    CondVar less;
    std::map<uid_t, uint64_t> of PF_GUARDED_BY(mutex);  // users that have something, or wait
  };
  const std::shared_ptr<Sums> sums_ = std::make_shared<Sums>();
};

}  // namespace pinfeed
