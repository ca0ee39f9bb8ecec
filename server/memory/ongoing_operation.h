// SPDX-License-Identifier: Apache-2.0
// The current operations of threads other than workers and copy threads. In: the steps of those threads. Out:
// what the log and status report when one hangs.
#pragma once

#include <chrono>
#include <string>

namespace pinfeed {

// A step that may wait for a driver, workers or storage. All fields together identify it.
struct OngoingOperation {
  std::string thread;  // its name: "feed-reaper"
  std::string what;    // "freeing the memory of feed 7"
  std::chrono::steady_clock::time_point since;
  bool storage = false;  // waits for storage, which may be slow; other waits take milliseconds

  bool operator==(const OngoingOperation& other) const = default;
};

}  // namespace pinfeed
