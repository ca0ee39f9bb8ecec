// SPDX-License-Identifier: Apache-2.0
// Decides which users may connect. In: allowed_uids, at the start and after each reload. Out: a decision by
// user id.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <utility>

#include "common/base/sync.h"
#include "server/config/config.h"

namespace pinfeed {

// Purpose: lets listeners check user ids while the configuration changes. Threads: any. Errors: none.
class ServedUsers {
 public:
  explicit ServedUsers(AllowedUids allowed) : allowed_(std::move(allowed)) {}

  bool Serves(uid_t uid) const PF_EXCLUDES(mutex_) {
    if (uid == 0 || uid == own_) return true;
    const MutexLock lock(mutex_);
    return allowed_.any || allowed_.uids.count(uid) != 0;
  }
  // Applies to connections from now on.
  void Set(AllowedUids allowed) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    allowed_ = std::move(allowed);
  }

 private:
  const uid_t own_ = ::geteuid();
  mutable Mutex mutex_;
  AllowedUids allowed_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
