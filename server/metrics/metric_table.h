// SPDX-License-Identifier: Apache-2.0
// The metrics that the figures are shown as, and docs/metrics.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/metrics/figures.h"

namespace pinfeed {

struct MetricDefinition {
  const FigureEntity* entity;
  const Figure* figure;  // null: the labels describe the entity, and the value is 1
  std::string name;
  FigureKind kind;  // kGauge, kCounter or kHistogram
  std::string help;
  std::vector<std::string> labels;
};

// In the order of the tables.
const std::vector<MetricDefinition>& MetricTable();
std::string_view MetricKindName(FigureKind kind);
// "bytes", "seconds" or "".
std::string_view UnitOf(std::string_view figure);

// The text of docs/metrics.md.
std::string MetricsPage();

}  // namespace pinfeed
