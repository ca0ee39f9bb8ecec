// SPDX-License-Identifier: Apache-2.0
#include "server/memory/large_samples.h"

#include "common/base/status.h"

namespace pinfeed {

thread_local LargeSamples::Attempts* LargeSamples::current_ = nullptr;

LargeSamples::Attempts::Attempts(LargeSamples& all) : all_(all) {
  PF_CHECK(current_ == nullptr, "a thread loads one sample at a time");
  current_ = this;
}

LargeSamples::Attempts::~Attempts() {
  current_ = nullptr;
  if (!large_ && !alone_) return;
  const MutexLock lock(all_.mutex_);
  if (alone_) all_.alone_ = false;
  all_.EndLocked(*this);
}

bool LargeSamples::Attempts::Again() {
  if (!refused_ || alone_) return false;
  const MutexLock lock(all_.mutex_);
  all_.EndLocked(*this);
  while (all_.alone_) {
    if (!all_.WaitLocked()) return false;
  }
  all_.alone_ = alone_ = true;
  all_.changed_at_ = Clock::now();
  while (all_.large_ > 0 && all_.WaitLocked()) {
  }
  return true;
}

bool LargeSamples::Begin() {
  Attempts* const attempts = current_;
  if (attempts == nullptr || attempts->large_) return true;
  const MutexLock lock(mutex_);
  if (alone_ && !attempts->alone_) return false;
  attempts->large_ = true;
  ++large_;
  changed_at_ = Clock::now();
  return true;
}

void LargeSamples::Refuse() {
  if (current_ != nullptr) current_->Refuse();
}

void LargeSamples::EndLocked(Attempts& attempts) {
  if (attempts.large_) --large_;
  attempts.large_ = false;
  changed_at_ = Clock::now();
  changed_.NotifyAll();
}

bool LargeSamples::WaitLocked() {
  const Clock::time_point deadline = changed_at_ + longest_turn_;
  return changed_.WaitUntil(mutex_, deadline) || changed_at_ + longest_turn_ > Clock::now();
}

}  // namespace pinfeed
