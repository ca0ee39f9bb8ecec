// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode/engine_calls.h"

#include <map>

namespace pinfeed {

EngineCalls& EngineCalls::Of(int gpu) {
  static Mutex mutex;
  static auto* const calls = new std::map<int, EngineCalls>;  // never destroyed: threads may be in one
  const MutexLock lock(mutex);
  return (*calls)[gpu];
}

void EngineCalls::Begin() {
  const MutexLock lock(mutex_);
  while (under_way_ == kAtOnce) ended_.Wait(mutex_);
  ++under_way_;
}

void EngineCalls::End() {
  const MutexLock lock(mutex_);
  --under_way_;
  ended_.NotifyOne();
}

}  // namespace pinfeed
