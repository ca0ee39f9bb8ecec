// SPDX-License-Identifier: Apache-2.0
// Histograms of durations with power-of-two buckets, cheap enough for every sample. In: nanoseconds. Out:
// counts, which the metrics export as histograms.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace pinfeed {

// Returns a duration as a count for histograms and counters; 0 if it is negative.
inline uint64_t Nanoseconds(std::chrono::nanoseconds duration) {
  return static_cast<uint64_t>(std::max<int64_t>(0, duration.count()));
}

// Purpose: a histogram as a plain value. Bucket i counts durations above BoundNs(i - 1), up to and including
// BoundNs(i), which is 1024 ns * 2^i. The last bucket has no bound and counts all longer ones (above 68.7 s).
struct DurationCounts {
  static constexpr size_t kBounds = 27;  // buckets that have an upper bound
  std::array<uint64_t, kBounds + 1> counts{};
  uint64_t sum_ns = 0;

  static constexpr uint64_t BoundNs(size_t bucket) { return uint64_t{1024} << bucket; }
  static size_t BucketOf(uint64_t ns) {
    return ns == 0 ? 0 : std::min(kBounds, static_cast<size_t>(std::bit_width((ns - 1) >> 10)));
  }
  void Add(uint64_t ns) {
    ++counts[BucketOf(ns)];
    sum_ns += ns;
  }
  uint64_t total() const { return std::accumulate(counts.begin(), counts.end(), uint64_t{0}); }
  // An upper bound of the durations that this share (0 to 1) of all is below or equal to: that of their
  // bucket. Precondition: total() > 0.
  uint64_t QuantileBoundNs(double share) const {
    const double wanted = share * static_cast<double>(total());
    uint64_t below = 0;
    for (size_t i = 0; i < kBounds; ++i) {
      below += counts[i];
      if (static_cast<double>(below) >= wanted) return BoundNs(i);
    }
    return BoundNs(kBounds);
  }
  DurationCounts& operator+=(const DurationCounts& other) {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
    sum_ns += other.sum_ns;
    return *this;
  }
};

// Purpose: a histogram that one thread writes while others read. Threads: Record from one thread, Counts from
// any. Since only one thread writes, a relaxed load and store replace the slower atomic addition. A reader
// may see slightly stale counts.
class DurationHistogram {
 public:
  void Record(uint64_t ns) {
    Add(counts_[DurationCounts::BucketOf(ns)], 1);
    Add(sum_ns_, ns);
  }
  DurationCounts Counts() const {
    DurationCounts out;
    for (size_t i = 0; i < counts_.size(); ++i) out.counts[i] = counts_[i].load(std::memory_order_relaxed);
    out.sum_ns = sum_ns_.load(std::memory_order_relaxed);
    return out;
  }

 private:
  static void Add(std::atomic<uint64_t>& word, uint64_t by) {
    word.store(word.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
  std::array<std::atomic<uint64_t>, DurationCounts::kBounds + 1> counts_{};
  std::atomic<uint64_t> sum_ns_{0};
};

}  // namespace pinfeed
