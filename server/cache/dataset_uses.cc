// SPDX-License-Identifier: Apache-2.0
#include "server/cache/dataset_uses.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace pinfeed {
namespace {

constexpr double kMeasuredSeconds = 1;  // so that a short time says something
constexpr double kPause = 1;            // as when a program compiles or validates: no rate

double Seconds(FeedUses::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

void FeedUses::At(const NextUse::Place& place, Clock::time_point now) {
  const MutexLock lock(mutex_);
  if (!begun_) {
    begun_ = true;
    begin_ = moved_ = now;
    place_ = place;
    return;
  }
  if (place.epoch < place_.epoch || (place.epoch == place_.epoch && place.position <= place_.position))
    return;
  // Of an epoch that has ended, what it still had at place_ is not known here: an underestimate, once an
  // epoch.
  const uint64_t step = place.epoch == place_.epoch ? place.position - place_.position : place.position;
  const bool paused =
      measured_ && Seconds(now - moved_) > kPause + 10 * position_seconds_ * static_cast<double>(step);
  place_ = place;
  moved_ = now;
  if (paused) {
    begin_ = now;
    passed_ = 0;
    return;
  }
  passed_ += step;
  const double seconds = Seconds(now - begin_);
  if (passed_ == 0 || seconds <= 0) return;
  const double latest = seconds / static_cast<double>(passed_);
  if (!measured_) position_seconds_ = latest;
  if (seconds < kMeasuredSeconds) return;
  // The mean of all time would take a feed for slow long after it has paused.
  position_seconds_ = (position_seconds_ + latest) / 2;
  measured_ = true;
  begin_ = now;
  passed_ = 0;
}

double FeedUses::SecondsUntil(uint64_t sample, Clock::time_point now) const {
  NextUse::Place place;
  double position_seconds = 0;
  double standing = 0;
  {
    const MutexLock lock(mutex_);
    place = place_;
    position_seconds = position_seconds_;
    if (begun_) standing = std::max(Seconds(now - moved_), 0.0);
  }
  // A feed that has stood for long may stand as long again.
  const std::optional<uint64_t> positions = order_.After(place, sample);
  return positions ? standing + static_cast<double>(*positions) * position_seconds : kNever;
}

void DatasetUses::Add(std::shared_ptr<const FeedUses> feed) {
  const MutexLock lock(mutex_);
  feeds_.push_back(std::move(feed));
}

void DatasetUses::Remove(const FeedUses& feed) {
  const MutexLock lock(mutex_);
  std::erase_if(feeds_, [&](const auto& other) { return other.get() == &feed; });
}

double DatasetUses::SecondsUntil(uint64_t sample) const {
  std::vector<std::shared_ptr<const FeedUses>> feeds;
  {
    const MutexLock lock(mutex_);
    feeds = feeds_;
  }
  double first = FeedUses::kNever;
  for (const auto& feed : feeds) first = std::min(first, feed->SecondsUntil(sample));
  return first;
}

}  // namespace pinfeed
