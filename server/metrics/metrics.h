// SPDX-License-Identifier: Apache-2.0
// The snapshot as Prometheus metrics. In: one DaemonSnapshot a scrape. Out: families of the text format.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "server/metrics/snapshot.h"

namespace pinfeed {

// Users with series of their own at one time; what the others have is summed under "others".
inline constexpr size_t kMaxUsersNamed = 20;

// Purpose: makes metrics at scrape time, so that sessions and feeds that ended leave no series behind. Owns:
// the snapshot function, whose captures must outlive it. Threads: Collect from any thread. Errors: none.
// Invariant: counters only grow over the daemon's life.
class MetricsCollector final : public prometheus::Collectable {
 public:
  MetricsCollector(std::string version, SnapshotFunction snapshot)
      : version_(std::move(version)), snapshot_(std::move(snapshot)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::string version_;
  const SnapshotFunction snapshot_;
};

// The families of one snapshot.
std::vector<prometheus::MetricFamily> MetricsOf(const DaemonSnapshot& snapshot, const std::string& version);

}  // namespace pinfeed
