// SPDX-License-Identifier: Apache-2.0
// The figures of the daemon, in one table per entity. /metrics, /status.json, the response of GetStatus and
// docs/metrics.md are generated from these tables, so that a figure has the same name in all of them. In: a
// DaemonSnapshot. Out: its figures.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/histogram.h"
#include "server/metrics/snapshot.h"

namespace pinfeed {

enum class FigureKind : uint8_t {
  kGauge,
  kCounter,
  kHistogram,
  kFact,    // a text or an id, not a quantity
  kObject,  // one nested entity
  kList,    // a list of nested entities
};

// Where a figure is shown. "Status" is both the response of GetStatus and /status.json.
enum class Place : uint8_t {
  kAll,       // in status, and as a metric
  kAttached,  // in status, and as a metric that exists only while the session is attached
  kLabel,     // in status, and as a label of the metric *_info
  kStatus,    // in status only
  kMessage,   // in the response of GetStatus only, since it names paths, error texts or samples: callers of
              // GetStatus are authenticated, readers of /status.json are not
  kMetric,    // as a metric only: histograms, and metrics that repeat status in another form
};

struct Figure {
  // The field of the message, the key in JSON, and the metric's name without its prefix and _total.
  std::string_view name;
  FigureKind kind;
  Place place;
  std::string_view label;  // the metric has one series per value of this label; empty: one series in all
  std::string_view help;
};

struct FigureEntity {
  std::string_view prefix;  // of the names of its metrics
  // Of its metrics; the value is its first figure. Empty: there is only one such entity.
  std::string_view label;
  std::string_view info;                 // the metric *_info whose labels describe it; empty: there is none
  const FigureEntity* within = nullptr;  // the enclosing entity, whose label its metrics have too
};

inline bool IsMetric(const Figure& figure) {
  return figure.place == Place::kAll || figure.place == Place::kAttached || figure.place == Place::kMetric;
}
inline bool IsInMessage(const Figure& figure) {
  return figure.place != Place::kMetric;
}
inline bool IsInJson(const Figure& figure) {
  return IsInMessage(figure) && figure.place != Place::kMessage;
}

struct FigureSet;

// Counts by the value of the figure's label. Status shows their sum.
struct FigureCounts {
  std::vector<std::pair<std::string_view, uint64_t>> parts;
  uint64_t Sum() const {
    uint64_t sum = 0;
    for (const auto& [label, count] : parts) sum += count;
    return sum;
  }
};
// Times or shares by cause. Status shows each of them.
struct FigureParts {
  std::vector<std::pair<std::string_view, double>> parts;
};
// Histograms by the value of the figure's label; without a label, one with an empty value.
struct FigureHistograms {
  std::vector<std::pair<std::string_view, DurationCounts>> parts;
};
// monostate: the figure has no value at the moment, and is not shown.
using FigureValue = std::variant<std::monostate, bool, uint64_t, double, std::string, std::vector<int32_t>,
                                 FigureCounts, FigureParts, FigureHistograms, std::vector<FigureSet>>;

struct FigureEntry {
  const Figure* figure;
  FigureValue value;
};

// The figures of one entity at one moment.
struct FigureSet {
  const FigureEntity* entity;
  std::vector<FigureEntry> entries;
};

FigureSet FiguresOf(const DaemonSnapshot& daemon);
FigureSet FiguresOf(const UserSnapshot& user);

struct FigureTable {
  std::string_view message;  // its name in pinfeed.v1
  const FigureEntity* entity;
  std::vector<const Figure*> figures;
};
std::span<const FigureTable> FigureTables();

}  // namespace pinfeed
