// SPDX-License-Identifier: Apache-2.0
// Sums waiting times by cause. In: spans of waiting, with their cause if it is known. Out: sums by cause.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pinfeed {

enum class StallCause : uint8_t {
  kRead,      // the trainer waited, and workers waited for the source
  kDecode,    // the trainer waited, and workers decoded or transformed
  kWorkers,   // the trainer waited, and all workers served other feeds
  kCopy,      // the trainer waited, and the batch was on its way to the GPU
  kConsumer,  // every slot was ready or lent: the daemon waited for the trainers
  kGroup,     // the trainer waited, while other members of its group held more slots
};
inline constexpr size_t kStallCauses = 6;
inline constexpr std::array<std::string_view, kStallCauses> kStallCauseNames = {"read", "decode",   "workers",
                                                                                "copy", "consumer", "group"};
using StallTimes = std::array<uint64_t, kStallCauses>;  // ns

// Purpose: sums waiting by cause. While samples are being loaded, the cause is not known yet, so that waiting
// is deferred until the workers report their times. Threads: one at a time. Errors: none. Invariant: no sum
// decreases.
class StallSums {
 public:
  // The elapsed time since the last Settle, and the workers' time in it, in total and by stage.
  struct Work {
    uint64_t elapsed_ns = 0;
    uint64_t worked_ns = 0;
    uint64_t read_ns = 0;
    uint64_t decode_ns = 0;
  };

  void Add(StallCause cause, uint64_t ns) { sums_[static_cast<size_t>(cause)] += ns; }
  void Defer(uint64_t ns) { deferred_ns_ += ns; }
  // Forgets deferred waiting beyond `most_ns`, which had no cause here. Returns how much.
  uint64_t Forget(uint64_t most_ns) {
    const uint64_t beyond = deferred_ns_ - std::min(deferred_ns_, most_ns);
    deferred_ns_ -= beyond;
    return beyond;
  }
  // Attributes the deferred waiting. The share of the time without a single worker goes to kWorkers, the rest
  // to the stages in the ratio of their times.
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
