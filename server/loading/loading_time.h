// SPDX-License-Identifier: Apache-2.0
// How long a producer whose samples arrive over time has had something to load. In: loads that begin and end.
// Out: the time in which there was one.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/base/histogram.h"
#include "common/base/sync.h"

namespace pinfeed {

// Purpose: sums the time in which at least one load is under way, from when a worker could begin with it.
// Threads: any. Errors: none. Invariant: the sum never falls.
class LoadingTime {
 public:
  void Begin() PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (under_way_++ == 0) since_ = Clock::now();
  }
  // Precondition: a Begin that has not ended.
  void End() PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (--under_way_ == 0) past_ += Clock::now() - since_;
  }
  uint64_t Ns() const PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const Clock::duration now = under_way_ == 0 ? Clock::duration::zero() : Clock::now() - since_;
    return Nanoseconds(past_ + now);
  }

 private:
  using Clock = std::chrono::steady_clock;

  mutable Mutex mutex_;
  uint32_t under_way_ PF_GUARDED_BY(mutex_) = 0;
  Clock::time_point since_ PF_GUARDED_BY(mutex_);
  Clock::duration past_ PF_GUARDED_BY(mutex_) = Clock::duration::zero();
};

}  // namespace pinfeed
