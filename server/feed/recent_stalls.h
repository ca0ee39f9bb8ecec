// SPDX-License-Identifier: Apache-2.0
// Recent shares of waiting by cause. In: growing sums by cause. Out: exponentially weighted shares of the
// time.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "server/feed/stall.h"

namespace pinfeed {

using StallShares = std::array<double, kStallCauses>;  // shares of the time, each 0 to 1

// The time constant: what was kRecentNs ago counts 1/e of what is now.
inline constexpr double kRecentNs = 15e9;

// The effect of a span of time on an exponentially weighted mean. The mean M at time t weighs the value f(s)
// at time s by exp(-(t - s)/T)/T:
//
//   M(t) = 1/T * integral over s <= t of f(s) exp(-(t - s)/T) ds
//
// If f is the constant v over a span dt, then M(t + dt) = M(t) * keep + v * (1 - keep) with keep =
// exp(-dt/T), the step response of a first-order low-pass. This holds for spans of any length, so the result
// does not depend on how often it is updated.
struct ExponentialDecay {
  explicit ExponentialDecay(uint64_t elapsed_ns)
      : keep(std::exp(-static_cast<double>(elapsed_ns) / kRecentNs)),
        gain(-std::expm1(-static_cast<double>(elapsed_ns) / kRecentNs)),
        gain_per_ns(elapsed_ns == 0 ? 1 / kRecentNs : gain / static_cast<double>(elapsed_ns)) {}
  double keep;
  double gain;  // 1 - keep
  double gain_per_ns;
};

// Purpose: computes the recent share of each cause. Threads: one at a time. Errors: none. Invariant: shares
// refer only to the time since the first Add, however short.
class RecentStalls {
 public:
  // `sums` are those at the end of the span. They do not decrease.
  void Add(const ExponentialDecay& span, const StallTimes& sums) {
    weight_ = weight_ * span.keep + span.gain;  // the mean of 1
    for (size_t i = 0; i < kStallCauses; ++i)
      means_[i] = means_[i] * span.keep + static_cast<double>(sums[i] - last_[i]) * span.gain_per_ns;
    last_ = sums;
  }
  // Whether any time has passed.
  bool known() const { return weight_ > 0; }
  StallShares shares() const {
    StallShares shares{};
    if (!known()) return shares;
    for (size_t i = 0; i < kStallCauses; ++i) shares[i] = std::fmin(1.0, means_[i] / weight_);
    return shares;
  }

 private:
  StallTimes last_{};
  StallShares means_{};
  double weight_ = 0;
};

}  // namespace pinfeed
