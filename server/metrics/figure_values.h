// SPDX-License-Identifier: Apache-2.0
// Building blocks of the tables in figures.cc: a row, and the conversion of snapshot members to figures.
#pragma once

#include <chrono>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "server/metrics/figures.h"

namespace pinfeed {

// One figure of an entity, and the function that computes it from a snapshot.
template <typename Entity>
struct FigureRow {
  constexpr FigureRow(std::string_view name, FigureKind kind, Place place, FigureValue (*get)(const Entity&),
                      std::string_view help, std::string_view label = {})
      : figure{name, kind, place, label, help}, value(get) {}
  Figure figure;
  FigureValue (*value)(const Entity&);
};

// ValueOf converts a member of a snapshot to the value of a figure.
template <std::integral Number>
FigureValue ValueOf(Number value) {
  return static_cast<uint64_t>(value);
}
inline FigureValue ValueOf(bool value) {
  return value;
}
inline FigureValue ValueOf(double value) {
  return value;
}
inline FigureValue ValueOf(const std::string& value) {
  return value;
}
inline FigureValue ValueOf(std::chrono::nanoseconds value) {
  return std::chrono::duration<double>(value).count();
}
inline FigureValue ValueOf(const std::vector<pid_t>& value) {
  return value;
}
inline FigureValue ValueOf(const DurationCounts& value) {
  return FigureHistograms{{{"", value}}};
}
inline FigureValue ValueOf(const StallTimes& times) {
  FigureParts by_cause;
  for (size_t i = 0; i < times.size(); ++i)
    by_cause.parts.emplace_back(kStallCauseNames[i], Seconds(times[i]));
  return by_cause;
}
inline FigureValue ValueOf(const StallShares& shares) {
  FigureParts by_cause;
  for (size_t i = 0; i < shares.size(); ++i) by_cause.parts.emplace_back(kStallCauseNames[i], shares[i]);
  return by_cause;
}
inline FigureValue ValueOf(const CodeCounts& counts) {
  FigureCounts by_code;
  for (size_t i = 1; i < counts.size(); ++i)
    by_code.parts.emplace_back(CodeName(static_cast<Code>(i)), counts[i]);
  return by_code;
}
inline FigureValue ValueOf(const RefusalCounts& counts) {
  FigureCounts by_reason;
  for (size_t i = 0; i < counts.size(); ++i)
    by_reason.parts.emplace_back(RefusalName(static_cast<Refusal>(i)), counts[i]);
  return by_reason;
}
template <typename Value>
FigureValue ValueOf(const std::optional<Value>& value) {
  return value ? ValueOf(*value) : FigureValue();
}

// The functions below are for FigureRow: each returns one member as a value.
template <auto kMember, typename Entity>
FigureValue Of(const Entity& entity) {
  return ValueOf(entity.*kMember);
}
template <auto kMember>
FigureValue OfFeed(const FeedReport& report) {
  return ValueOf(report.feed.*kMember);
}
template <auto kMember>
FigureValue OfTotals(const DaemonSnapshot& daemon) {
  return ValueOf(daemon.totals.*kMember);
}
// For members in nanoseconds.
template <auto kMember, typename Entity>
FigureValue SecondsOf(const Entity& entity) {
  return Seconds(entity.*kMember);
}
template <auto kMember>
FigureValue SecondsOfFeed(const FeedReport& report) {
  return SecondsOf<kMember>(report.feed);
}

}  // namespace pinfeed
