// SPDX-License-Identifier: Apache-2.0
// A figure has one name: in the tables, in the message, in /status.jsonand as a metric.
#include "server/metrics/figures.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "pinfeed/v1/feeder.pb.h"
#include "server/metrics/metric_table.h"
#include "server/metrics/metrics.h"
#include "server/metrics/status_json.h"
#include "server/rpc/status_message.h"
#include "tests/support/testing.h"
#include "tests/unit/metrics/full_snapshot.h"

namespace pinfeed {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using Json = nlohmann::json;
using Names = std::set<std::string>;
using NamesByMessage = std::map<std::string, Names>;

// The names of the figures that are shown somewhere, by message.
NamesByMessage Rows(const std::function<bool(const Figure&)>& is_shown) {
  NamesByMessage names;
  for (const FigureTable& table : FigureTables()) {
    Names& of_message = names[std::string(table.message)];
    for (const Figure* const figure : table.figures) {
      if (is_shown(*figure)) {
        EXPECT_TRUE(of_message.emplace(figure->name).second) << figure->name << " is there twice";
      }
    }
  }
  return names;
}

// The fields of a message and of those in it.
void AddFields(const Descriptor& message, NamesByMessage& names) {
  if (!names.try_emplace(message.name()).second) return;
  for (int i = 0; i < message.field_count(); ++i) {
    names[message.name()].insert(message.field(i)->name());
    if (const Descriptor* const inner = message.field(i)->message_type()) AddFields(*inner, names);
  }
}

// The keys of an object, and of those in it, by the messages that have the same fields.
void AddKeys(const Json& object, const Descriptor& message, NamesByMessage& names) {
  for (const auto& [key, value] : object.items()) {
    names[message.name()].insert(key);
    const FieldDescriptor* const field = message.FindFieldByName(key);
    ASSERT_NE(field, nullptr) << key << " is no field of " << message.name();
    if (field->message_type() == nullptr) continue;
    for (const Json& inner : value.is_array() ? value : Json::array({value}))
      AddKeys(inner, *field->message_type(), names);
  }
}

Json MessageJson(const DaemonSnapshot& snapshot) {
  v1::GetStatusResponse message;
  FillStatus(snapshot, message);
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  EXPECT_TRUE(google::protobuf::util::MessageToJsonString(message, &json, options).ok());
  return Json::parse(json);
}

// Every number of `shown` is the same in `message`.
void ExpectSameNumbers(const Json& shown, const Json& message, const std::string& where) {
  for (const auto& [key, value] : shown.items()) {
    const std::string here = where.empty() ? key : where + "." + key;
    if (value.is_object()) ExpectSameNumbers(value, message[key], here);
    for (size_t i = 0; value.is_array() && i < value.size(); ++i)
      ExpectSameNumbers(value[i], message[key][i], here);
    if (!value.is_number()) continue;
    // protobuf prints 64-bit integers as strings.
    const Json& same = message[key];
    EXPECT_EQ(same.is_string() ? Json::parse(same.get<std::string>()) : same, value) << here;
  }
}

TEST(FiguresTest, TheMessageHasTheFiguresOfTheTablesAndNoOthers) {
  NamesByMessage fields;
  AddFields(*v1::GetStatusResponse::descriptor(), fields);
  const Names causes(kStallCauseNames.begin(), kStallCauseNames.end());
  EXPECT_EQ(fields["StallSeconds"], causes);
  EXPECT_EQ(fields["StallShares"], causes);
  fields.erase("StallSeconds");
  fields.erase("StallShares");
  EXPECT_EQ(fields["RequestLatency"], (Names{"p50", "p90", "p99"}));
  fields.erase("RequestLatency");
  EXPECT_EQ(fields, Rows(IsInMessage));
}

TEST(FiguresTest, JsonHasTheFiguresOfTheTablesAndNoOthers) {
  NamesByMessage keys;
  AddKeys(Json::parse(StatusJson(Full())), *v1::GetStatusResponse::descriptor(), keys);
  keys.erase("StallSeconds");
  keys.erase("StallShares");
  keys.erase("RequestLatency");
  NamesByMessage rows = Rows(IsInJson);
  std::erase_if(rows, [](const auto& message) { return message.second.empty(); });
  EXPECT_EQ(keys, rows);
}

TEST(FiguresTest, JsonAndTheMessageHaveTheSameNumbers) {
  ExpectSameNumbers(Json::parse(StatusJson(Full())), MessageJson(Full()), "");
}

TEST(FiguresTest, AMetricIsCalledLikeItsFigure) {
  const std::string text = prometheus::TextSerializer().Serializer::Serialize(MetricsOf(Full()));
  Names expected;
  for (const FigureTable& table : FigureTables()) {
    if (!table.entity->info.empty()) expected.emplace(table.entity->info);
    for (const Figure* const figure : table.figures) {
      const std::string name = std::string(table.entity->prefix) + std::string(figure->name);
      if (IsMetric(*figure)) expected.insert(figure->kind == FigureKind::kCounter ? name + "_total" : name);
    }
  }
  Names found;
  static const std::regex kType("# TYPE (\\w+) ");
  for (std::sregex_iterator match(text.begin(), text.end(), kType), end; match != end; ++match)
    found.insert((*match)[1]);
  EXPECT_EQ(found, expected);
}

// A number of the daemon is in the status what its metric says, summed over the labels.
TEST(FiguresTest, MetricsOfTheDaemonHaveTheNumbersOfItsStatus) {
  const Json status = Json::parse(StatusJson(Full()));
  const auto families = MetricsOf(Full());
  for (const MetricDefinition& metric : MetricTable()) {
    if (metric.figure == nullptr || metric.figure->place != Place::kAll) continue;
    if (metric.entity->prefix != "pinfeed_" && metric.entity->prefix != "process_") continue;
    const Json& shown = status[std::string(metric.figure->name)];
    double expected = 0;
    for (const Json& part : shown.is_object() ? shown : Json::array({shown}))
      expected += part.is_boolean() ? (part.get<bool>() ? 1 : 0) : part.get<double>();
    double sum = 0;
    for (const auto& family : families) {
      for (const auto& series : family.metric)
        if (family.name == metric.name) sum += series.counter.value + series.gauge.value;
    }
    EXPECT_DOUBLE_EQ(sum, expected) << metric.name;
  }
}

// Whatever is a number is a metric, in JSON and in the message, unless there is one of these reasons.
TEST(FiguresTest, OnlyWhatIsNoNumberOrSaidOtherwiseIsMissingAnywhere) {
  for (const FigureTable& table : FigureTables()) {
    for (const Figure* const figure : table.figures) {
      const std::string name(figure->name);
      const bool is_number = figure->kind == FigureKind::kGauge || figure->kind == FigureKind::kCounter;
      EXPECT_THAT(name, ::testing::MatchesRegex("[a-z]+(_[a-z]+)*"));
      EXPECT_FALSE(figure->help.empty()) << name;
      if (figure->place == Place::kMetric && figure->kind != FigureKind::kHistogram) {
        // Status has the state, and lists of what is counted.
        EXPECT_TRUE(figure->label == "state" || name == "ready" || name == "draining" || name == "arenas");
      }
      if (figure->place == Place::kMessage && table.message != "LingeringMemory") {
        EXPECT_FALSE(is_number) << name;
      }
      if (IsMetric(*figure)) {
        EXPECT_TRUE(is_number || figure->kind == FigureKind::kHistogram) << name;
      }
      if (figure->label == "state" && IsInMessage(*figure)) {
        const std::string part = name + "_ready";
        EXPECT_TRUE(std::any_of(table.figures.begin(), table.figures.end(),
                                [&](const Figure* other) { return other->name == part; }));
      }
    }
  }
}

}  // namespace
}  // namespace pinfeed
