// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/metric_table.h"

namespace pinfeed {
namespace {

// The labels of the entity's own series. A session's say of which feed it is.
std::vector<std::string> EntityLabels(const FigureEntity& entity) {
  std::vector<std::string> labels;
  for (const FigureEntity* each = &entity; each != nullptr; each = each->within)
    if (!each->label.empty()) labels.emplace_back(each->label);
  return labels;
}

MetricDefinition InfoOf(const FigureTable& table) {
  const std::string what = table.entity->label.empty() ? "daemon" : std::string(table.entity->label);
  MetricDefinition info{table.entity,
                        nullptr,
                        std::string(table.entity->info),
                        FigureKind::kGauge,
                        "Always 1; the labels describe the " + what + ".",
                        EntityLabels(*table.entity)};
  for (const Figure* const figure : table.figures)
    if (figure->place == Place::kLabel) info.labels.emplace_back(figure->name);
  return info;
}

std::vector<MetricDefinition> MakeTable() {
  std::vector<MetricDefinition> metrics;
  for (const FigureTable& table : FigureTables()) {
    if (!table.entity->info.empty()) metrics.push_back(InfoOf(table));
    for (const Figure* const figure : table.figures) {
      if (!IsMetric(*figure)) continue;
      const std::string_view end = figure->kind == FigureKind::kCounter ? "_total" : "";
      MetricDefinition& metric = metrics.emplace_back(MetricDefinition{
          table.entity, figure, std::string(table.entity->prefix).append(figure->name).append(end),
          figure->kind, std::string(figure->help), EntityLabels(*table.entity)});
      if (!figure->label.empty()) metric.labels.emplace_back(figure->label);
    }
  }
  return metrics;
}

}  // namespace

const std::vector<MetricDefinition>& MetricTable() {
  static const std::vector<MetricDefinition> kTable = MakeTable();
  return kTable;
}

std::string_view MetricKindName(FigureKind kind) {
  if (kind == FigureKind::kHistogram) return "histogram";
  return kind == FigureKind::kCounter ? "counter" : "gauge";
}

std::string_view UnitOf(std::string_view figure) {
  if (figure.ends_with("bytes")) return "bytes";
  return figure.ends_with("seconds") ? "seconds" : "";
}

}  // namespace pinfeed
