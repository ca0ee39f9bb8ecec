// SPDX-License-Identifier: Apache-2.0
// What a service manager passes to the daemon's process, as sd_listen_fds_with_names(3) and
// sd_watchdog_enabled(3) define it. In: environment variables. Out: sockets, the watchdog interval, the
// cache directory.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// Returns the passed sockets with their names, close-on-exec; none if they are meant for another process.
// Removes their variables from the environment, so call it once, while there is one thread.
Result<std::vector<std::pair<std::string, UniqueFd>>> TakePassedSockets();

// Returns the interval in which the service manager expects to hear from this process, or zero.
std::chrono::microseconds WatchdogInterval();

// Returns the directory for data that can be made again: that of the service manager, else pinfeed/ in the
// user's (XDG base directory specification). Empty if there is none.
std::string CacheDirectory();

}  // namespace pinfeed
