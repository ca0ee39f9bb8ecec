// SPDX-License-Identifier: Apache-2.0
// What the copies of one engine have amounted to, for status and metrics.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "common/base/histogram.h"
#include "server/memory/gpu/copy_stream.h"

namespace pinfeed {

// Purpose: counts copies. Threads: written by the copy thread, read by any. Errors: none. Invariant: no count
// falls.
class CopyCounts {
 public:
  struct Values {
    uint64_t copies = 0;  // jobs
    uint64_t bytes = 0;
    uint64_t copy_ns = 0;      // time in which the stream was busy
    uint64_t queue_ns = 0;     // total time between submission and start of jobs
    uint64_t errors = 0;       // driver errors; the first one stops the engine
    DurationCounts durations;  // of jobs, from submission to the driver to detected completion
  };

  void AddQueued(std::chrono::nanoseconds waited) { Add(queue_ns_, Nanoseconds(waited)); }
  void AddCopied(const CopyStream::Copied& copied) {
    Add(copies_, 1);
    Add(bytes_, copied.job.bytes());
    Add(copy_ns_, Nanoseconds(copied.end - copied.begin));
    durations_.Record(Nanoseconds(copied.end - copied.enqueued));
  }
  void AddError() { Add(errors_, 1); }
  Values Read() const {
    return {copies_.load(std::memory_order_relaxed),  bytes_.load(std::memory_order_relaxed),
            copy_ns_.load(std::memory_order_relaxed), queue_ns_.load(std::memory_order_relaxed),
            errors_.load(std::memory_order_relaxed),  durations_.Counts()};
  }

 private:
  static void Add(std::atomic<uint64_t>& sum, uint64_t more) {
    sum.fetch_add(more, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> copies_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> copy_ns_{0};
  std::atomic<uint64_t> queue_ns_{0};
  std::atomic<uint64_t> errors_{0};
  DurationHistogram durations_;
};

}  // namespace pinfeed
