// SPDX-License-Identifier: Apache-2.0
// Limits how often one place in the code may log.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/sync.h"

namespace pinfeed {

// Purpose: limits the rate of log lines that others can trigger. Threads: any. Errors: none. Invariant:
// dropped lines are counted and reported with the next line.
class LogPace {
 public:
  using Clock = std::chrono::steady_clock;
  explicit LogPace(uint32_t max_per_second) : max_per_second_(max_per_second) {}

  // Returns the suffix for the line: empty, or the number of lines dropped since the last one. No value: drop
  // this line as well.
  std::optional<std::string> Admit(Clock::time_point now = Clock::now()) PF_EXCLUDES(mutex_);

 private:
  const uint32_t max_per_second_;
  Mutex mutex_;
  Clock::time_point second_ PF_GUARDED_BY(mutex_);  // start of the current interval
  uint32_t lines_ PF_GUARDED_BY(mutex_) = 0;
  uint64_t left_out_ PF_GUARDED_BY(mutex_) = 0;
};

}  // namespace pinfeed
