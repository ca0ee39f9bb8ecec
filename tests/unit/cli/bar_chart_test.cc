// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bar_chart.h"

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(BarChartTest, LongestBarFillsItsPanel) {
  BarChart chart("Title", {"a", "b"});
  chart.AddPanel("one", {{"x", 1, "1 ms", 0}, {"y", 4, "4 ms", 1}});
  chart.AddPanel("two", {{"z", 0, "0 ms", 0}});
  const std::string svg = chart.Svg();
  EXPECT_THAT(svg, HasSubstr("width=\"440.0\""));
  EXPECT_THAT(svg, HasSubstr("width=\"110.0\""));
  EXPECT_THAT(svg, HasSubstr(">4 ms</text>"));
  EXPECT_THAT(svg, HasSubstr("width=\"0.0\""));
}

TEST(BarChartTest, TextIsEscaped) {
  BarChart chart("<b>&\n", {});
  const std::string svg = chart.Svg();
  EXPECT_THAT(svg, HasSubstr("&lt;b&gt;&amp;\\n"));
  EXPECT_THAT(svg, Not(HasSubstr("<b>")));
}

}  // namespace
}  // namespace pinfeed
