// SPDX-License-Identifier: Apache-2.0
// How many threads are in nvJPEG's calls at once.
#pragma once

#include "common/base/sync.h"

namespace pinfeed {

// Purpose: bounds the threads of this process that have one GPU's JPEG engines decode. Within the call, each
// of them polls, and competes with the others for the driver's locks. Two keep the engines busy; what a third
// one adds is processor time (docs/decisions/0039). Threads: any.
class EngineCalls {
 public:
  static constexpr int kAtOnce = 2;

  // Lives as long as the process.
  static EngineCalls& Of(int gpu);

  // Purpose: one thread's call. Waits until it may begin.
  class Scope {
   public:
    explicit Scope(EngineCalls& calls) : calls_(calls) { calls_.Begin(); }
    ~Scope() { calls_.End(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    EngineCalls& calls_;
  };

 private:
  void Begin() PF_EXCLUDES(mutex_);
  void End() PF_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar ended_;
  int under_way_ PF_GUARDED_BY(mutex_) = 0;
};

}  // namespace pinfeed
