// SPDX-License-Identifier: Apache-2.0
// What waiting was for. In: spans of time in which somebody waited, with what is known of the cause. Out:
// sums by cause.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pinfeed {

enum class StallCause : uint8_t {
  kRead,      // the trainer waited, and workers waited for the source
  kDecode,    // the trainer waited, and workers decoded or transformed
  kWorkers,   // the trainer waited, and no worker was at its feed: they had others to serve
  kCopy,      // the trainer waited, and the batch was on its way to the GPU
  kConsumer,  // every slot was ready or lent: the daemon waited for the trainers
  kGroup,     // likewise, and the trainer waited: others of its group had the slots
};
inline constexpr size_t kStallCauses = 6;
inline constexpr std::array<std::string_view, kStallCauses> kStallCauseNames = {"read", "decode",   "workers",
                                                                                "copy", "consumer", "group"};
// 0 for what is less.
inline uint64_t Nanoseconds(std::chrono::nanoseconds duration) {
  return static_cast<uint64_t>(std::max<int64_t>(0, duration.count()));
}
using StallTimes = std::array<uint64_t, kStallCauses>;  // ns

// Purpose: sums waiting by cause. While samples are being loaded it is not known yet what takes the time:
// that waiting is deferred until the workers tell. Threads: one at a time. Errors: none. Invariant: no sum
// ever falls.
class StallSums {
 public:
  // Of the time since the last settling, what workers spent in all and in which stage.
  struct Work {
    uint64_t elapsed_ns = 0;
    uint64_t worked_ns = 0;
    uint64_t read_ns = 0;
    uint64_t decode_ns = 0;
  };

  void Add(StallCause cause, uint64_t ns) { sums_[static_cast<size_t>(cause)] += ns; }
  void Defer(uint64_t ns) { deferred_ns_ += ns; }
  // The share of the time for which not even one worker was there goes to kWorkers, the rest as the stages
  // were.
  void Settle(const Work& work) {
    const uint64_t alone = work.elapsed_ns - std::min(work.worked_ns, work.elapsed_ns);
    const uint64_t unserved = PartOf(deferred_ns_, alone, work.elapsed_ns);
    const uint64_t served = deferred_ns_ - unserved;
    const double stages = static_cast<double>(work.read_ns) + static_cast<double>(work.decode_ns);
    const uint64_t decode = PartOf(served, work.decode_ns, stages);
    Add(StallCause::kWorkers, unserved);
    Add(StallCause::kDecode, decode);
    Add(StallCause::kRead, served - decode);
    deferred_ns_ = 0;
  }
  const StallTimes& sums() const { return sums_; }

 private:
  template <typename Whole>
  static uint64_t PartOf(uint64_t ns, uint64_t part, Whole whole) {
    if (whole <= 0) return 0;
    const double share = static_cast<double>(part) / static_cast<double>(whole);
    return std::min(ns, static_cast<uint64_t>(static_cast<double>(ns) * share));
  }

  StallTimes sums_{};
  uint64_t deferred_ns_ = 0;
};

}  // namespace pinfeed
