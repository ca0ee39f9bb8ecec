// SPDX-License-Identifier: Apache-2.0
// The time limit of one call, and how messages name a duration.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

namespace pinfeed {

struct Deadline {
  std::optional<std::chrono::steady_clock::time_point> at;  // unset: no limit

  explicit Deadline(std::optional<std::chrono::nanoseconds> timeout) {
    const auto now = std::chrono::steady_clock::now();
    if (timeout && *timeout < std::chrono::steady_clock::time_point::max() - now) at = now + *timeout;
  }
  bool Passed() const { return at && std::chrono::steady_clock::now() >= *at; }
  std::chrono::nanoseconds AtMost(std::chrono::nanoseconds time) const {
    if (!at) return time;
    return std::clamp<std::chrono::nanoseconds>(*at - std::chrono::steady_clock::now(),
                                                std::chrono::nanoseconds(0), time);
  }
};

// "1.25 s"
inline std::string Seconds(std::chrono::nanoseconds time) {
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "%.2f s", std::chrono::duration<double>(time).count());
  return text.data();
}

}  // namespace pinfeed
