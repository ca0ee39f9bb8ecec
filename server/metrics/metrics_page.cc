// SPDX-License-Identifier: Apache-2.0
// docs/metrics.md from the table of metrics.
#include "server/metrics/metric_table.h"

namespace pinfeed {

std::string MetricsPage() {
  std::string page =
      "# Metrics\n\n"
      "<!-- Made by `build/release/server/metrics/print_metrics` from server/metrics/metric_table.cc; a "
      "test "
      "compares. -->\n\n"
      "`pinfeedd` shows these at `http://127.0.0.1:9467/metrics` (`http_listen`), in Prometheus' text "
      "format. "
      "[deploy/prometheus](../deploy/prometheus) has a configuration, alert rules and their tests, "
      "[deploy/grafana](../deploy/grafana) a dashboard, [runbook.md](runbook.md) what to do "
      "when an alert fires.\n\n"
      "- Counters only grow while the daemon lives; a restart sets them to 0.\n"
      "- Series of a feed, session or GPU (labels `feed`, `session`, `gpu`) exist only while there is one. A "
      "session has 11 and a "
      "feed 17, so there are at most `max_sessions` x 28 of them. The others are always there, from 0 on. "
      "Ids are not used twice "
      "while the daemon lives.\n"
      "- Series of a user (label `uid`) exist while it has something, for the 20 that have the most; "
      "`others` is the "
      "sum of the rest.\n"
      "- No label holds what a client is free to say: client names, dataset paths and error texts are not "
      "here. `code` is one of "
      "gRPC's sixteen, `reason`, `state`, `stage` and `cause` are words of the daemon's.\n"
      "- Histograms have buckets from 1.024 us to 68.7 s, each twice the one before it.\n"
      "- `cause` is what waiting was for: `read` (the source), `decode` (decoding and transforms), `workers` "
      "(no worker: "
      "they had other feeds to serve), `copy` (the way to the GPU), `consumer` (every slot was ready or "
      "lent: the trainer "
      "is what is slow), `group` (of a session only: likewise, and others had more of them, so it waited for "
      "others of its "
      "group). All but `consumer` are the trainers' own account of their waiting, held within the "
      "time there was; "
      "what happened to the batch that they waited for tells the cause. A feed is data-bound when the first "
      "four grow "
      "by more than a few percent of the time.\n\n"
      "| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n";
  for (const MetricDefinition& metric : MetricTable()) {
    std::string labels;
    for (const std::string& label : LabelNames(metric))
      labels += (labels.empty() ? "`" : ", `") + label + "`";
    page += "| `" + std::string(metric.name) + "` | " + std::string(MetricKindName(metric.kind)) + " | " +
            std::string(metric.unit) + " | " + labels + " | " + std::string(metric.help) + " |\n";
  }
  return page;
}

}  // namespace pinfeed
