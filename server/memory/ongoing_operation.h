// SPDX-License-Identifier: Apache-2.0
// The current operations of threads other than workers and copy threads, and of processes that fill batches.
// In: their steps. Out: what the log and status report when one hangs.
#pragma once

#include <chrono>
#include <string>

namespace pinfeed {

// What a step may wait for. Storage and processes may be slow; the daemon's own parts take milliseconds.
enum class WaitsFor { kDaemon, kStorage, kProcess };

// All fields together identify it.
struct OngoingOperation {
  std::string thread;  // its name: "feed-reaper", "producer 4711"
  std::string what;    // "freeing the memory of feed 7"
  std::chrono::steady_clock::time_point since;
  WaitsFor waits_for = WaitsFor::kDaemon;

  bool operator==(const OngoingOperation& other) const = default;
};

}  // namespace pinfeed
