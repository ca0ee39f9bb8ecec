// SPDX-License-Identifier: Apache-2.0
// The signals while a step of the start keeps the main thread busy. In: the daemon's signalfd and lifetime
// pipe. Out: the end of the process.
#pragma once

#include <functional>
#include <thread>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// Purpose: lets a long step of the start, such as pinning memory, be broken off: what runs then is mostly the
// kernel and a driver, which take no word from us, and nothing is served yet, so the process ends from here.
// Owns: a thread. Borrows: the descriptors. Threads: the owner's, which is at that step. Errors: Create's.
class StartupSignalWatcher {
 public:
  // `lifetime` may be -1. `on_end` is called from the thread before the process ends with status 0; `on_hup`
  // for a SIGHUP, which ends nothing.
  static Result<StartupSignalWatcher> Create(int signals, int lifetime, std::function<void()> on_end,
                                             std::function<void()> on_hup);
  StartupSignalWatcher(StartupSignalWatcher&& other) noexcept = default;
  StartupSignalWatcher& operator=(StartupSignalWatcher&& other) = delete;
  // What comes from now on is left where it is, for whoever reads next.
  ~StartupSignalWatcher();

 private:
  StartupSignalWatcher(UniqueFd stop, std::thread thread)
      : stop_(std::move(stop)), thread_(std::move(thread)) {}

  UniqueFd stop_;  // eventfd
  std::thread thread_;
};

// Whether the pipe at `fd` has no writer any more; reads what was written.
bool HasHungUp(int fd);

}  // namespace pinfeed
