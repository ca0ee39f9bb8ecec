// SPDX-License-Identifier: Apache-2.0
// How often one place of the program may log.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/sync.h"

namespace pinfeed {

// Purpose: bounds the lines of a place whose lines others cause. Threads: any. Errors: none. Invariant: what
// is left out is counted, and told with the next line.
class LogPace {
 public:
  using Clock = std::chrono::steady_clock;
  explicit LogPace(uint32_t most_a_second) : most_(most_a_second) {}

  // What to put behind the line: nothing, or how many were left out since the last one. No value: leave this
  // one out, too.
  std::optional<std::string> Admit(Clock::time_point now = Clock::now()) PF_EXCLUDES(mutex_);

 private:
  const uint32_t most_;
  Mutex mutex_;
  Clock::time_point second_ PF_GUARDED_BY(mutex_);  // that is counted
  uint32_t lines_ PF_GUARDED_BY(mutex_) = 0;
  uint64_t left_out_ PF_GUARDED_BY(mutex_) = 0;
};

}  // namespace pinfeed
