// SPDX-License-Identifier: Apache-2.0
// Warns at startup about configured paths that cannot be read. In: the configuration. Out: log warnings.
#pragma once

#include "server/config/config.h"
#include "server/daemon/abandonable_thread.h"

namespace pinfeed {

// Purpose: checks that the allowed roots and named datasets exist. Uses its own thread, so that a hung mount
// does not delay the start. A missing path is only a warning, because it may be mounted later.
// Owns: the thread. Threads: one at a time; only Finish waits. Errors: only logged.
class StartupPathCheck {
 public:
  explicit StartupPathCheck(CommandLine command_line);

  // Warns once if the check takes long. Returns when to call it next.
  AbandonableThread::Clock::time_point CheckTimeout();
  // Waits until `deadline` and returns whether the check has ended. If not, the process must exit without
  // destroying the logger, which the thread may use.
  bool Finish(AbandonableThread::Clock::time_point deadline);

 private:
  AbandonableThread thread_;
  AbandonableThread::Clock::time_point warns_at_;  // max(): it has, or needs not
};

}  // namespace pinfeed
