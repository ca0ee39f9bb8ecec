// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/abandonable_thread.h"

#include <utility>

#include "common/base/sync.h"
#include "common/os/start_thread.h"

namespace pinfeed {

// Purpose: the state that the thread shares with its owner. Threads: those two.
class AbandonableThread::Progress {
 public:
  explicit Progress(std::string step) : step_(std::move(step)) {}
  void SetStep(std::string step) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    step_ = std::move(step);
  }
  std::string step() const PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return step_;
  }
  void End() PF_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      finished_ = true;
    }
    changed_.NotifyAll();
  }
  // Waits until `deadline`. Returns whether the body has finished.
  bool AwaitEnd(Clock::time_point deadline) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    while (!finished_ && changed_.WaitUntil(mutex_, deadline)) {
    }
    return finished_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::string step_ PF_GUARDED_BY(mutex_);
  bool finished_ PF_GUARDED_BY(mutex_) = false;
};

AbandonableThread::AbandonableThread(const char* name, std::string first_step, Body body)
    : progress_(std::make_shared<Progress>(std::move(first_step))) {
  thread_ = StartThread(name, [progress = progress_, body = std::move(body)] {
    body([&](std::string step) { progress->SetStep(std::move(step)); });
    progress->End();
  });
}

AbandonableThread::~AbandonableThread() {
  if (!Finish(Clock::now())) thread_.detach();
}

std::string AbandonableThread::step() const {
  return progress_->step();
}

bool AbandonableThread::Finish(Clock::time_point deadline) {
  if (!thread_.joinable()) return true;
  if (!progress_->AwaitEnd(deadline)) return false;
  thread_.join();
  return true;
}

}  // namespace pinfeed
