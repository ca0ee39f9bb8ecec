// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/metrics.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "server/metrics/live_page.h"
#include "server/metrics/metric_table.h"
#include "server/metrics/status_json.h"
#include "tests/support/testing.h"
#include "tests/unit/metrics/full_snapshot.h"

namespace pinfeed {
namespace {

TEST(MetricsTest, EveryMetricOfTheTableIsThereAndNoOther) {
  std::set<std::string> seen;
  for (const auto& family : MetricsOf(Full())) {
    seen.insert(family.name);
    EXPECT_FALSE(family.metric.empty()) << family.name;
  }
  std::set<std::string> table;
  for (const MetricDefinition& metric : MetricTable()) table.insert(metric.name);
  EXPECT_EQ(seen, table);
}

TEST(MetricsTest, SeriesOfUsersAreBounded) {
  DaemonSnapshot snapshot = Full();
  snapshot.users.clear();
  for (uint32_t uid = 0; uid < 5000; ++uid) snapshot.users.push_back({uid, 1, uid, 0, 0});
  for (const auto& family : MetricsOf(snapshot)) {
    if (family.name != "pinfeed_user_sessions" && family.name != "pinfeed_user_pool_bytes") continue;
    ASSERT_EQ(family.metric.size(), kMaxUsersNamed + 1);
    EXPECT_EQ(family.metric.front().label.at(0).value, "4999") << "who has the most";
    EXPECT_EQ(family.metric.back().label.at(0).value, "others");
    double sum = 0;
    for (const auto& series : family.metric) sum += series.gauge.value;
    EXPECT_EQ(sum, family.name == "pinfeed_user_sessions" ? 5000 : 4999.0 * 5000 / 2);
  }
}

TEST(MetricsTest, NoLabelHoldsWhatAClientSays) {
  for (const auto& family : MetricsOf(Full())) {
    for (const auto& metric : family.metric) {
      for (const auto& label : metric.label) {
        EXPECT_THAT(label.value, Not(HasSubstr("<"))) << family.name;
        EXPECT_THAT(label.value, Not(HasSubstr("secret"))) << family.name;
        EXPECT_THAT(label.name, Not(HasSubstr("client"))) << family.name;
      }
    }
  }
}

TEST(MetricsTest, HistogramsAreCumulativeAndEndAtInfinity) {
  for (const auto& family : MetricsOf(Full())) {
    if (family.type != prometheus::MetricType::Histogram) continue;
    for (const auto& metric : family.metric) {
      const auto& buckets = metric.histogram.bucket;
      ASSERT_EQ(buckets.size(), DurationCounts::kBounds + 1);
      for (size_t i = 1; i < buckets.size(); ++i) {
        EXPECT_GE(buckets[i].cumulative_count, buckets[i - 1].cumulative_count);
        EXPECT_GT(buckets[i].upper_bound, buckets[i - 1].upper_bound);
      }
      EXPECT_EQ(buckets.back().cumulative_count, metric.histogram.sample_count);
      EXPECT_EQ(buckets.back().upper_bound, std::numeric_limits<double>::infinity());
      if (family.name != "pinfeed_batch_lent_duration_seconds") continue;
      EXPECT_EQ(metric.histogram.sample_count, 1U);
      EXPECT_DOUBLE_EQ(metric.histogram.sample_sum, 2e-6);
      EXPECT_EQ(buckets[0].cumulative_count, 0U) << "2000 ns are more than 1024";
      EXPECT_EQ(buckets[1].cumulative_count, 1U);
    }
  }
}

TEST(MetricsTest, SeriesOfASessionThatIsNotAttachedEnd) {
  std::map<std::string, std::set<std::string>> sessions;
  for (const auto& family : MetricsOf(Full())) {
    for (const auto& metric : family.metric) {
      for (const auto& label : metric.label) {
        if (label.name == "session") sessions[family.name].insert(label.value);
      }
    }
  }
  EXPECT_EQ(sessions["pinfeed_session_info"], (std::set<std::string>{"7", "8"}));
  EXPECT_EQ(sessions["pinfeed_session_stall_seconds_total"], (std::set<std::string>{"7"}));
}

TEST(StatusJsonTest, IsValidWhateverNamesHold) {
  const auto status = nlohmann::json::parse(StatusJson(Full()));
  EXPECT_EQ(status["server_epoch"], std::to_string(UINT64_MAX));
  const auto& feed = status["feeds"][0];
  EXPECT_EQ(feed["name"], "bad \\xff</script>\\n\"");
  EXPECT_EQ(feed["slot_states"], "fwrl");
  EXPECT_EQ(feed["dataset_samples"], 1281167);
  EXPECT_EQ(feed["batch_size"], 256);
  EXPECT_EQ(feed["shuffled"], true);
  EXPECT_EQ(feed["error_code"], "DATA_LOSS");
  EXPECT_EQ(feed["sessions"][0]["slots_ready"], 2);
  EXPECT_EQ(feed["sessions"][0]["slots_held"], 1);
  EXPECT_DOUBLE_EQ(feed["sessions"][0]["stall_seconds"]["copy"].get<double>(), 3.0);
  EXPECT_EQ(status["state"], "ready") << "though threads hang";
  EXPECT_EQ(status["hung"], nlohmann::json::parse(R"([
      {"thread": "worker1", "seconds": 130.0, "feed_id": 3, "sample_id": 12},
      {"thread": "copy-0", "seconds": 121.0, "gpu": "GPU-1"}])"));
}

TEST(StatusJsonTest, TellsNoPathsAndNoErrorTexts) {
  EXPECT_THAT(StatusJson(Full()), Not(HasSubstr("secret")));
}

TEST(LivePageTest, IsOnePageThatLoadsNothingFromElsewhere) {
  const std::string page(kLivePage);
  EXPECT_THAT(page, HasSubstr("/status.json"));
  EXPECT_THAT(page, Not(HasSubstr("://")));
  EXPECT_THAT(page, Not(HasSubstr("innerHTML")));
  EXPECT_THAT(page, Not(HasSubstr("src=")));
  EXPECT_THAT(std::string(kLivePagePolicy), HasSubstr("default-src 'none'; script-src 'sha256-"));
  EXPECT_THAT(std::string(kLivePagePolicy), Not(HasSubstr("unsafe")));
}

TEST(MetricsPageTest, NamesFollowTheRules) {
  for (const MetricDefinition& metric : MetricTable()) {
    const std::string& name = metric.name;
    EXPECT_TRUE(name.starts_with("pinfeed_") || name.starts_with("process_")) << name;
    EXPECT_EQ(name.ends_with("_total"), metric.kind == FigureKind::kCounter) << name;
    const std::string unit(metric.figure == nullptr ? "" : UnitOf(metric.figure->name));
    if (!unit.empty()) {
      EXPECT_THAT(name, HasSubstr("_" + unit));
    }
    EXPECT_THAT(MetricsPage(), HasSubstr("| `" + name + "` |"));
  }
}

}  // namespace
}  // namespace pinfeed
