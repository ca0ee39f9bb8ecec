// SPDX-License-Identifier: Apache-2.0
// What threads that give memory back are at. In: their steps. Out: what the log tells of when it hangs.
#pragma once

#include <chrono>
#include <string>

namespace pinfeed {

// One step that may wait for a driver or for workers, and when it began: the two together are its name.
struct CleanUp {
  std::string what;  // "freeing the memory of feed 7"
  std::chrono::steady_clock::time_point since;

  bool operator==(const CleanUp& other) const = default;
};

}  // namespace pinfeed
