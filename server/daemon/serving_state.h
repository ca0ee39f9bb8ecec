// SPDX-License-Identifier: Apache-2.0
// Whether the daemon serves, and what ends it. In: stop requests and GPU failures. Out: what the main thread,
// status and metrics ask.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>

#include "common/base/status.h"
#include "common/base/sync.h"

namespace pinfeed {

// Purpose: goes from starting through serving to draining, never back. Threads: any, unless said. Errors:
// none. Invariant: a daemon that has failed drains.
class ServingState {
 public:
  using Clock = std::chrono::steady_clock;

  void Announce() { announced_ = true; }
  bool announced() const { return announced_; }
  // Whether clients can open feeds.
  bool ready() const { return announced_ && !failed_ && !draining(); }

  // Idempotent.
  void BeginDrain();
  bool draining() const { return drain_began_ != kNotDraining; }
  // Empty while not draining.
  std::optional<Clock::time_point> drain_began() const;

  // A GPU has failed. Begins the drain.
  void Fail(const Status& failure) PF_EXCLUDES(mutex_);
  bool failed() const { return failed_; }
  // Of the first GPU that failed.
  Status failure() const PF_EXCLUDES(mutex_);
  // The metrics were fetched after the failure. Returns false if they had been fetched before.
  bool ShowFailure() { return !failure_shown_.exchange(true); }
  bool failure_shown() const { return failure_shown_; }

  // Main thread only, from here on.
  void RequestStop() { ++stop_requests_; }
  int stop_requests() const { return stop_requests_; }
  // The process that this daemon serves has ended.
  void EndLifetime() { lifetime_over_ = true; }
  bool lifetime_over() const { return lifetime_over_; }
  // Whether the daemon has been asked to stop.
  bool ending() const { return stop_requests_ > 0 || lifetime_over_ || failed_; }

 private:
  static constexpr Clock::rep kNotDraining = 0;

  std::atomic<bool> announced_{false};
  std::atomic<Clock::rep> drain_began_{kNotDraining};
  std::atomic<bool> failed_{false};
  std::atomic<bool> failure_shown_{false};
  mutable Mutex mutex_;
  Status failure_ PF_GUARDED_BY(mutex_);
  int stop_requests_ = 0;
  bool lifetime_over_ = false;
};

}  // namespace pinfeed
