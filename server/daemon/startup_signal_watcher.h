// SPDX-License-Identifier: Apache-2.0
// Handles signals while a startup step blocks the main thread. In: the daemon's signalfd and lifetime pipe.
// Out: the exit of the process.
#pragma once

#include <functional>
#include <thread>

#include "common/base/result.h"
#include "common/os/wake_event.h"

namespace pinfeed {

// Purpose: makes long startup steps, such as pinning memory, interruptible. Most of that time is spent in the
// kernel and the driver, which cannot be cancelled. Nothing is served yet, so this thread exits the process.
// Owns: a thread. Borrows: the descriptors. Threads: the owner's, which runs the startup step. Errors: those
// of Create.
class StartupSignalWatcher {
 public:
  // `lifetime` may be -1. `on_end` is called on this thread before the process exits with status 0. `on_hup`
  // is called for SIGHUP, which does not stop the daemon.
  static Result<StartupSignalWatcher> Create(int signals, int lifetime, std::function<void()> on_end,
                                             std::function<void()> on_hup);
  StartupSignalWatcher(StartupSignalWatcher&& other) noexcept = default;
  StartupSignalWatcher& operator=(StartupSignalWatcher&& other) = delete;
  // Later signals stay queued for the next reader.
  ~StartupSignalWatcher();

 private:
  StartupSignalWatcher(WakeEvent stop, std::thread thread)
      : stop_(std::move(stop)), thread_(std::move(thread)) {}

  WakeEvent stop_;
  std::thread thread_;
};

// Whether the pipe's writers have all closed it. Discards data that was written.
bool HasHungUp(int fd);

}  // namespace pinfeed
