// SPDX-License-Identifier: Apache-2.0
#include "server/memory/large_samples.h"

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
  if (all_.TakeTurn(*this, /*may_wait=*/waiting == nullptr)) return true;
  waiting();
  return all_.TakeTurn(*this, /*may_wait=*/true);
}

bool LargeSamples::TakeTurn(Attempts& attempts, bool may_wait) {
  const MutexLock lock(mutex_);
  EndLocked(attempts);
  if (!may_wait && (large_ > 0 || IsTurnOfOtherLocked(attempts))) return false;
  while (IsTurnOfOtherLocked(attempts)) changed_.WaitUntil(mutex_, turn_ends_);
  turn_ = &attempts;
  turn_ends_ = Clock::now() + longest_turn_;
  while (large_ > 0 && changed_.WaitUntil(mutex_, turn_ends_)) {
  }
  return true;
}

Status LargeSamples::Try(const std::function<Status()>& attempt) {
  Attempts attempts(*this);
  Status status;
  do {
    status = attempt();
    if (status.code() == Code::kResourceExhausted) attempts.Refuse();
  } while (!status.ok() && attempts.Again());
  return status;
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
