// SPDX-License-Identifier: Apache-2.0
#include "common/base/log_pace.h"

#include <utility>

namespace pinfeed {

std::optional<std::string> LogPace::Admit(Clock::time_point now) {
  const MutexLock lock(mutex_);
  if (now - second_ >= std::chrono::seconds(1)) {
    second_ = now;
    lines_ = 0;
  }
  if (lines_ >= max_per_second_) {
    ++left_out_;
    return std::nullopt;
  }
  ++lines_;
  const uint64_t left_out = std::exchange(left_out_, 0);
  if (left_out == 0) return std::string();
  return " (and " + std::to_string(left_out) + " such lines were dropped)";
}

}  // namespace pinfeed
