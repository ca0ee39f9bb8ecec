// SPDX-License-Identifier: Apache-2.0
#include "server/start_look.h"

#include <pthread.h>

#include <exception>
#include <string>
#include <utility>

#include "common/log.h"
#include "common/sync.h"
#include "server/host_check.h"

namespace pinfeed {

// Purpose: what the thread and its owner share, for as long as either has it. Threads: those two.
class StartLook::Progress {
 public:
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
      over_ = true;
    }
    changed_.NotifyAll();
  }
  bool AwaitEnd(Clock::time_point deadline) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    while (!over_ && changed_.WaitUntil(mutex_, deadline)) {
    }
    return over_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::string step_ PF_GUARDED_BY(mutex_) = "beginning";
  bool over_ PF_GUARDED_BY(mutex_) = false;
};

StartLook::StartLook(CommandLine command_line) : progress_(std::make_shared<Progress>()) {
  thread_ = std::thread([progress = progress_, command_line = std::move(command_line)] {
    ::pthread_setname_np(::pthread_self(), "start-look");
    try {
      const auto at = [&](std::string step) { progress->SetStep(std::move(step)); };
      for (const std::string& warning : MissingWarnings({}, command_line, at)) spdlog::warn("{}", warning);
    } catch (const std::exception& error) {
      spdlog::warn("{}: {}", progress->step(), error.what());
    }
    progress->End();
  });
}

StartLook::~StartLook() {
  (void)Finish(Clock::now());
}

bool StartLook::Finish(Clock::time_point deadline) {
  if (!thread_.joinable()) return true;
  if (progress_->AwaitEnd(deadline)) {
    thread_.join();
    return true;
  }
  spdlog::warn("{} hangs since the start; the daemon ends without waiting for it", progress_->step());
  thread_.detach();
  return false;
}

}  // namespace pinfeed
