// SPDX-License-Identifier: Apache-2.0
// Exports the snapshot as Prometheus metrics. In: one DaemonSnapshot per scrape, so that ended sessions and
// feeds leave no series behind. Out: metric families, and the page /metrics.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "server/metrics/snapshot.h"

namespace pinfeed {

// The maximum number of users with their own series. The rest are summed under "others".
inline constexpr size_t kMaxUsersNamed = 20;

// The metric families of one snapshot. Counters only increase during the daemon's life.
std::vector<prometheus::MetricFamily> MetricsOf(DaemonSnapshot snapshot);
// The same as text.
std::string MetricsText(DaemonSnapshot snapshot);

}  // namespace pinfeed
