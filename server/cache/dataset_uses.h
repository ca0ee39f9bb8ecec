// SPDX-License-Identifier: Apache-2.0
// Who will use the samples of one dataset, and how soon. In: the feeds of the dataset and where they are.
// Out: the time until the first of them uses a sample, by which the cache decides what to keep.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/sync.h"
#include "common/spec/feed_spec.h"
#include "server/order/next_use.h"

namespace pinfeed {

// Purpose: estimates when one feed uses a sample: the positions up to there, at the feed's rate of the last
// seconds. A feed that stands is expected to stand as long again.
// Threads: any. Errors: none.
class FeedUses {
 public:
  using Clock = std::chrono::steady_clock;

  // Precondition: Sampler::Create accepted the spec for as many samples.
  FeedUses(const FeedSpec& spec, uint64_t dataset_samples) : order_(spec, dataset_samples) {}

  // The feed loads the samples before this place. Earlier places than the latest are ignored.
  void At(const NextUse::Place& place, Clock::time_point now = Clock::now()) PF_EXCLUDES(mutex_);
  // Seconds; kNever if the feed ends before.
  double SecondsUntil(uint64_t sample, Clock::time_point now = Clock::now()) const PF_EXCLUDES(mutex_);
  static constexpr double kNever = 1e15;

 private:
  const NextUse order_;
  mutable Mutex mutex_;
  bool begun_ PF_GUARDED_BY(mutex_) = false;
  NextUse::Place place_ PF_GUARDED_BY(mutex_);
  Clock::time_point moved_ PF_GUARDED_BY(mutex_);  // when it came to place_
  // The rate is measured from here on, and then again.
  Clock::time_point begin_ PF_GUARDED_BY(mutex_);
  uint64_t passed_ PF_GUARDED_BY(mutex_) = 0;  // positions since begin_
  bool measured_ PF_GUARDED_BY(mutex_) = false;
  double position_seconds_ PF_GUARDED_BY(mutex_) = 1e-3;  // what a position takes; at first a guess
};

// Purpose: the feeds of one dataset. Threads: any. Errors: none.
class DatasetUses {
 public:
  void Add(std::shared_ptr<const FeedUses> feed) PF_EXCLUDES(mutex_);
  void Remove(const FeedUses& feed) PF_EXCLUDES(mutex_);
  // Of the feed that uses the sample first; kNever if none does.
  double SecondsUntil(uint64_t sample) const PF_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<const FeedUses>> feeds_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
