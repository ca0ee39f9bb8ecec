// SPDX-License-Identifier: Apache-2.0
// How long poll(2) and epoll_wait(2) are to wait.
#pragma once

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>

namespace pinfeed {

// Milliseconds until `deadline`, rounded up; 0 if it has passed, -1 (for ever) if it is the last of all.
inline int PollTimeout(std::chrono::steady_clock::time_point deadline) {
  using Clock = std::chrono::steady_clock;
  if (deadline == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, INT_MAX));
}

}  // namespace pinfeed
