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
  if (!large_ && !tried_again_) return;
  const MutexLock lock(all_.mutex_);
  if (all_.turn_ == this) all_.turn_ = nullptr;
  all_.EndLocked(*this);
}

bool LargeSamples::Attempts::Again(const std::function<void()>& waiting) {
  if (!refused_ || tried_again_) return false;
  tried_again_ = true;
  bool waits = false;
  {
    const MutexLock lock(all_.mutex_);
    all_.EndLocked(*this);
    waits = all_.large_ > 0 || all_.IsTurnOfOtherLocked(*this);
  }
  if (waits && waiting) waiting();
  const MutexLock lock(all_.mutex_);
  while (all_.IsTurnOfOtherLocked(*this)) all_.changed_.WaitUntil(all_.mutex_, all_.turn_ends_);
  all_.turn_ = this;
  all_.turn_ends_ = Clock::now() + all_.longest_turn_;
  while (all_.large_ > 0 && all_.changed_.WaitUntil(all_.mutex_, all_.turn_ends_)) {
  }
  return true;
}

bool LargeSamples::Begin() {
  Attempts* const attempts = current_;
  if (attempts == nullptr || attempts->large_) return true;
  const MutexLock lock(mutex_);
  if (IsTurnOfOtherLocked(*attempts)) return false;
  attempts->large_ = true;
  ++large_;
  return true;
}

void LargeSamples::Refuse() {
  if (current_ != nullptr) current_->Refuse();
}

void LargeSamples::EndLocked(Attempts& attempts) {
  if (attempts.large_) --large_;
  attempts.large_ = false;
  changed_.NotifyAll();
}

bool LargeSamples::IsTurnOfOtherLocked(const Attempts& attempts) const {
  return turn_ != nullptr && turn_ != &attempts && Clock::now() < turn_ends_;
}

}  // namespace pinfeed
