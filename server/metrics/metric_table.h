// SPDX-License-Identifier: Apache-2.0
// The metrics that /metrics exports, and docs/metrics.md. In: the tables of figures. Out: their metrics.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/metrics/figures.h"

namespace pinfeed {

struct MetricDefinition {
  const FigureEntity* entity;
  const Figure* figure;  // null: a metric *_info, whose value is 1 and whose labels describe the entity
  std::string name;
  FigureKind kind;  // kGauge, kCounter or kHistogram
  std::string help;
  std::vector<std::string> labels;
};

// All metrics, in the order of FigureTables().
const std::vector<MetricDefinition>& MetricTable();
std::string_view MetricKindName(FigureKind kind);
// The unit in the figure's name: "bytes", "seconds", or "" if it has none.
std::string_view UnitOf(std::string_view figure);

// The text of docs/metrics.md.
std::string MetricsPage();

}  // namespace pinfeed
