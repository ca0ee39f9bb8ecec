// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/status_json.h"

#include <nlohmann/json.hpp>

#include "common/base/quote.h"
#include "server/metrics/figures.h"

namespace pinfeed {
namespace {

using Json = nlohmann::json;

Json ObjectOf(const FigureSet& set);

// What a value is in JSON.
struct ToJson {
  const Figure& figure;

  Json operator()(const std::string& text) const { return EscapeUnprintable(text); }
  Json operator()(const FigureCounts& counts) const { return counts.Sum(); }
  Json operator()(const FigureParts& causes) const {
    Json out = Json::object();
    for (const auto& [cause, value] : causes.parts) out[std::string(cause)] = value;
    return out;
  }
  Json operator()(const std::vector<FigureSet>& sets) const {
    if (figure.kind == FigureKind::kObject) return ObjectOf(sets.front());
    Json out = Json::array();
    for (const FigureSet& set : sets) out.push_back(ObjectOf(set));
    return out;
  }
  Json operator()(std::monostate /*absent*/) const { return nullptr; }
  Json operator()(const FigureHistograms& /*only metrics*/) const { return nullptr; }
  Json operator()(const auto& value) const { return value; }
};

Json ObjectOf(const FigureSet& set) {
  Json out = Json::object();
  for (const FigureEntry& entry : set.entries) {
    if (IsInJson(*entry.figure) && !std::holds_alternative<std::monostate>(entry.value))
      out[std::string(entry.figure->name)] = std::visit(ToJson{*entry.figure}, entry.value);
  }
  return out;
}

}  // namespace

std::string StatusJson(const DaemonSnapshot& snapshot) {
  Json status = ObjectOf(FiguresOf(snapshot));
  status["server_epoch"] = std::to_string(snapshot.server_epoch);  // too long for a number of JavaScript's
  return status.dump() + "\n";
}

}  // namespace pinfeed
