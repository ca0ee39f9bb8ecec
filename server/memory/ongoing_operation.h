// SPDX-License-Identifier: Apache-2.0
// What threads other than workers and copy threads are at. In: their steps. Out: what the log and status tell
// of when it hangs.
#pragma once

#include <chrono>
#include <string>

namespace pinfeed {

// One step that may wait for a driver, for workers or for storage, and when it began: all together are its
// name.
struct OngoingOperation {
  std::string thread;  // its name: "feed-reaper"
  std::string what;    // "freeing the memory of feed 7"
  std::chrono::steady_clock::time_point since;
  bool storage = false;  // it waits for storage, which may take long; else for what takes milliseconds

  bool operator==(const OngoingOperation& other) const = default;
};

}  // namespace pinfeed
