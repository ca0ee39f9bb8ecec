// SPDX-License-Identifier: Apache-2.0
// The error of work that several threads do together. In: their errors. Out: the first one.
#pragma once

#include <atomic>
#include <utility>

#include "common/base/status.h"
#include "common/base/sync.h"

namespace pinfeed {

// Purpose: keeps the first error of several threads. Threads: any. Errors: none.
class FirstError {
 public:
  void Set(Status status) PF_EXCLUDES(mutex_) {
    if (status.ok()) return;
    const MutexLock lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
    failed_.store(true, std::memory_order_relaxed);
  }
  // For threads that need not go on. Waits for no lock.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  Status Get() const PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  mutable Mutex mutex_;
  Status status_ PF_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};
};

}  // namespace pinfeed
