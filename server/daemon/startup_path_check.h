// SPDX-License-Identifier: Apache-2.0
// What a daemon that has just started cannot read, for its log. In: its configuration. Out: warnings.
#pragma once

#include "server/config/config.h"
#include "server/daemon/abandonable_thread.h"

namespace pinfeed {

// Purpose: looks whether the allowed roots and named datasets are there, on a thread of its own, since a
// mount that hangs must not hold up the start; what is not there may be mounted later, so it is a warning.
// Owns: the thread. Threads: one at a time; only Finish waits. Errors: none but the warnings.
class StartupPathCheck {
 public:
  explicit StartupPathCheck(CommandLine command_line);

  // Whether it is done, for which it waits until then. If not, the process must end without destroying what
  // the thread may use: the log.
  bool Finish(AbandonableThread::Clock::time_point deadline);

 private:
  AbandonableThread thread_;
};

}  // namespace pinfeed
