// SPDX-License-Identifier: Apache-2.0
// Exports the snapshot as Prometheus metrics. In: one DaemonSnapshot per scrape. Out: metric families.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <vector>

#include "server/metrics/snapshot.h"

namespace pinfeed {

// The maximum number of users with their own series. The rest are summed under "others".
inline constexpr size_t kMaxUsersNamed = 20;

// Purpose: generates metrics at scrape time, so that ended sessions and feeds leave no series behind. Owns:
// the snapshot function, whose captures must outlive it. Threads: Collect from any thread. Errors: none.
// Invariant: counters only increase during the daemon's life.
class MetricsCollector final : public prometheus::Collectable {
 public:
  explicit MetricsCollector(SnapshotFunction snapshot) : snapshot_(std::move(snapshot)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const SnapshotFunction snapshot_;
};

// The metric families of one snapshot.
std::vector<prometheus::MetricFamily> MetricsOf(DaemonSnapshot snapshot);

}  // namespace pinfeed
