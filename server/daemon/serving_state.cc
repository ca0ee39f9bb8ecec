// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/serving_state.h"

namespace pinfeed {

void ServingState::BeginDrain() {
  Clock::rep none = kNotDraining;
  drain_began_.compare_exchange_strong(none, Clock::now().time_since_epoch().count());
}

std::optional<ServingState::Clock::time_point> ServingState::drain_began() const {
  const Clock::rep began = drain_began_;
  if (began == kNotDraining) return std::nullopt;
  return Clock::time_point(Clock::duration(began));
}

void ServingState::Fail(const Status& failure) {
  {
    const MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = failure;
  }
  failed_ = true;
  BeginDrain();
}

Status ServingState::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

}  // namespace pinfeed
