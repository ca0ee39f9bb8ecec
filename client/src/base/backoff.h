// SPDX-License-Identifier: Apache-2.0
// Exponential backoff with jitter, so that a host's trainers do not return to a restarted daemon all at once.
#pragma once

#include <algorithm>
#include <chrono>
#include <random>

namespace pinfeed {

// Purpose: the pauses between attempts: 50 ms, doubling up to 2 s, each drawn at random from its upper half
// ("equal jitter" of M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015). Copyable.
// Threads: one.
class Backoff {
 public:
  std::chrono::nanoseconds Next() {
    const auto half = pause_ / 2;
    pause_ = std::min<std::chrono::nanoseconds>(pause_ * 2, kMax);
    return half + std::chrono::nanoseconds(std::uniform_int_distribution<int64_t>(0, half.count())(random_));
  }
  void Reset() { pause_ = kFirst; }

  static constexpr std::chrono::milliseconds kFirst{50};
  static constexpr std::chrono::milliseconds kMax{2000};

 private:
  std::chrono::nanoseconds pause_ = kFirst;
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace pinfeed
