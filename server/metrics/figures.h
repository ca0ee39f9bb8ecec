// SPDX-License-Identifier: Apache-2.0
// The figures of the daemon: one table an entity. From it come /metrics, /status.json, the message of
// GetStatus and docs/metrics.md, so a figure has one name in all of them. In: a DaemonSnapshot. Out: its
// figures.
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
  kFact,    // a text, an id: no quantity
  kObject,  // the figures of one other entity
  kList,    // the figures of other entities
};

// Where a figure is shown. "Status" is both the message of GetStatus and /status.json.
enum class Place : uint8_t {
  kAll,       // in status, and as a metric
  kAttached,  // likewise, but the metric exists only while the session is attached
  kLabel,     // in status, and as a label of the metric *_info
  kStatus,    // in status
  kMessage,   // in the message, whose callers are known: paths, error texts, names of samples
  kMetric,    // as a metric: distributions, and what status says in other words
};

struct Figure {
  std::string_view
      name;  // the field of the message, the key in JSON, and the metric without prefix and _total
  FigureKind kind;
  Place place;
  std::string_view label;  // the metric has a series for each value of this label; empty: it has one
  std::string_view help;
};

struct FigureEntity {
  std::string_view prefix;  // of its metrics
  std::string_view label;   // in its metrics, with its first figure as the value; empty: there is only one
  std::string_view info;    // the metric whose labels describe it; empty: there is none
  const FigureEntity* within = nullptr;  // whose label its metrics have as well
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

// Counts by the value of a label. Status has their sum.
struct FigureCounts {
  std::vector<std::pair<std::string_view, uint64_t>> parts;
  uint64_t Sum() const {
    uint64_t sum = 0;
    for (const auto& [label, count] : parts) sum += count;
    return sum;
  }
};
// Times or shares by cause. Status has each of them.
struct FigureParts {
  std::vector<std::pair<std::string_view, double>> parts;
};
// By the value of a label, which is empty if there is only one.
struct FigureHistograms {
  std::vector<std::pair<std::string_view, DurationCounts>> parts;
};
// monostate: the figure does not exist at the moment.
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
  std::string_view message;  // of pinfeed.v1
  const FigureEntity* entity;
  std::vector<const Figure*> figures;
};
std::span<const FigureTable> FigureTables();

}  // namespace pinfeed
