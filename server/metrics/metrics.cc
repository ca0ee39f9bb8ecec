// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "common/base/status.h"
#include "server/metrics/metric_table.h"

namespace pinfeed {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using LabelValues = std::vector<std::string>;

std::string TextOf(const FigureValue& value) {
  if (const auto* number = std::get_if<uint64_t>(&value)) return std::to_string(*number);
  const auto* text = std::get_if<std::string>(&value);
  return text == nullptr ? std::string() : *text;
}

LabelValues With(LabelValues labels, std::string_view value) {
  if (!value.empty()) labels.emplace_back(value);
  return labels;
}

// Purpose: builds the metric families of the table. Threads: one. Invariant: labels match the table.
class Page {
 public:
  Page() {
    for (const MetricDefinition& metric : MetricTable()) {
      const MetricType type = metric.kind == FigureKind::kHistogram ? MetricType::Histogram
                              : metric.kind == FigureKind::kCounter ? MetricType::Counter
                                                                    : MetricType::Gauge;
      indices_.emplace(metric.figure != nullptr ? static_cast<const void*>(metric.figure) : metric.entity,
                       families_.size());
      families_.push_back({metric.name, metric.help, type, {}});
    }
  }

  // Adds the series of an entity and of those in it. `name` is the value of its label, if its first figure is
  // not. `within` are the values of the labels of what it is in.
  void Add(const FigureSet& set, const LabelValues& within = {}, std::string name = {}) {
    if (name.empty() && !set.entity->label.empty()) name = TextOf(set.entries.front().value);
    LabelValues own = With({}, name);
    own.insert(own.end(), within.begin(), within.end());
    AddInfo(set, own);
    const auto state = std::find_if(set.entries.begin(), set.entries.end(),
                                    [](const FigureEntry& entry) { return entry.figure->name == "state"; });
    const bool attached = state != set.entries.end() && TextOf(state->value) == "attached";
    for (const FigureEntry& entry : set.entries) {
      if (const auto* sets = std::get_if<std::vector<FigureSet>>(&entry.value)) {
        for (const FigureSet& inner : *sets) Add(inner, own);
      } else if (IsMetric(*entry.figure) && (attached || entry.figure->place != Place::kAttached)) {
        AddFigure(entry, own);
      }
    }
  }
  // Returns the families, without those that have no series.
  std::vector<MetricFamily> Take() && {
    std::erase_if(families_, [](const MetricFamily& family) { return family.metric.empty(); });
    return std::move(families_);
  }

 private:
  void AddInfo(const FigureSet& set, LabelValues labels) {
    if (set.entity->info.empty()) return;
    for (const FigureEntry& entry : set.entries)
      if (entry.figure->place == Place::kLabel) labels.push_back(TextOf(entry.value));
    NewSeries(set.entity, labels).gauge.value = 1;
  }
  void AddFigure(const FigureEntry& entry, const LabelValues& own) {
    const auto number = [&](auto value, std::string_view label = {}) {
      ClientMetric& series = NewSeries(entry.figure, With(own, label));
      const bool counter = entry.figure->kind == FigureKind::kCounter;
      (counter ? series.counter.value : series.gauge.value) = static_cast<double>(value);
    };
    if (const auto* flag = std::get_if<bool>(&entry.value)) number(*flag);
    if (const auto* count = std::get_if<uint64_t>(&entry.value)) number(*count);
    if (const auto* amount = std::get_if<double>(&entry.value)) number(*amount);
    if (const auto* counts = std::get_if<FigureCounts>(&entry.value))
      for (const auto& [label, value] : counts->parts) number(value, label);
    if (const auto* causes = std::get_if<FigureParts>(&entry.value))
      for (const auto& [label, value] : causes->parts) number(value, label);
    if (const auto* histograms = std::get_if<FigureHistograms>(&entry.value))
      for (const auto& [label, durations] : histograms->parts)
        Fill(durations, NewSeries(entry.figure, With(own, label)));
  }
  static void Fill(const DurationCounts& durations, ClientMetric& series) {
    uint64_t count = 0;
    for (size_t i = 0; i < durations.counts.size(); ++i) {
      count += durations.counts[i];
      const double bound = i < DurationCounts::kBounds ? Seconds(DurationCounts::BoundNs(i))
                                                       : std::numeric_limits<double>::infinity();
      series.histogram.bucket.push_back({count, bound});
    }
    series.histogram.sample_count = count;
    series.histogram.sample_sum = Seconds(durations.sum_ns);
  }
  // Of the metric of a figure, or of the *_info of an entity.
  ClientMetric& NewSeries(const void* what, const LabelValues& labels) {
    const size_t index = indices_.at(what);
    const std::vector<std::string>& names = MetricTable()[index].labels;
    PF_CHECK(names.size() == labels.size(), "a series has the labels that the table names");
    ClientMetric& series = families_[index].metric.emplace_back();
    for (size_t i = 0; i < names.size(); ++i) series.label.push_back({names[i], labels[i]});
    return series;
  }

  std::unordered_map<const void*, size_t> indices_;  // by the figure; of *_info, by the entity
  std::vector<MetricFamily> families_;               // one per row of the table
};

// Leaves the users with the most memory, and returns the sum of the others. Users come and go, and every
// label value would stay in the database.
std::optional<UserSnapshot> TakeOthers(std::vector<UserSnapshot>& users) {
  if (users.size() <= kMaxUsersNamed) return std::nullopt;
  std::stable_sort(users.begin(), users.end(), [](const UserSnapshot& a, const UserSnapshot& b) {
    return std::tuple(a.pool_bytes + a.gpu_bytes + a.cache_bytes, a.sessions) >
           std::tuple(b.pool_bytes + b.gpu_bytes + b.cache_bytes, b.sessions);
  });
  UserSnapshot others;
  for (size_t i = kMaxUsersNamed; i < users.size(); ++i) {
    others.sessions += users[i].sessions;
    others.pool_bytes += users[i].pool_bytes;
    others.pinned_bytes += users[i].pinned_bytes;
    others.gpu_bytes += users[i].gpu_bytes;
    others.cache_bytes += users[i].cache_bytes;
  }
  users.resize(kMaxUsersNamed);
  return others;
}

}  // namespace

std::vector<MetricFamily> MetricsOf(DaemonSnapshot snapshot) {
  const std::optional<UserSnapshot> others = TakeOthers(snapshot.users);
  Page page;
  page.Add(FiguresOf(snapshot));
  if (others) page.Add(FiguresOf(*others), {}, "others");
  return std::move(page).Take();
}

std::string MetricsText(DaemonSnapshot snapshot) {
  return prometheus::TextSerializer().Serializer::Serialize(MetricsOf(std::move(snapshot)));
}

}  // namespace pinfeed
