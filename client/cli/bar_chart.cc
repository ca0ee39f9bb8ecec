// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bar_chart.h"

#include <algorithm>
#include <array>

#include "client/cli/text.h"

namespace pinfeed {
namespace {

constexpr int kWidth = 760;
constexpr int kLabels = 230;  // width left of the bars
constexpr int kValues = 90;   // width right of the longest bar
constexpr int kBar = 22;      // height, including the gap
constexpr int kHeading = 34;  // height of a panel's heading
constexpr int kTop = 64;      // height of title and legend
constexpr std::array<const char*, 4> kColours = {"#4878a8", "#e08848", "#60a060", "#a060a0"};

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : Printable(text)) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Text(int x, int y, const std::string& text, const char* more = "") {
  return "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\"" + more + ">" +
         Escaped(text) + "</text>\n";
}

std::string Rectangle(int x, int y, double width, int height, size_t series) {
  return "<rect x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" width=\"" + Fixed(width, 1) +
         "\" height=\"" + std::to_string(height) + "\" fill=\"" + kColours.at(series % kColours.size()) +
         "\"/>\n";
}

}  // namespace

std::string BarChart::Svg() const {
  int y = kTop;
  std::string body = Text(16, 28, title_, " font-size=\"17\" font-weight=\"bold\"");
  int x = 16;
  for (size_t i = 0; i < series_.size(); ++i) {
    body += Rectangle(x, 42, 12, 12, i) + Text(x + 18, 53, series_[i]);
    x += 50 + static_cast<int>(series_[i].size()) * 8;
  }
  for (const Panel& panel : panels_) {
    y += kHeading;
    body += Text(16, y - 10, panel.title, " font-weight=\"bold\"");
    double longest = 0;
    for (const Bar& bar : panel.bars) longest = std::max(longest, bar.value);
    for (const Bar& bar : panel.bars) {
      const double width = longest > 0 ? bar.value / longest * (kWidth - kLabels - kValues) : 0;
      body += Text(kLabels - 8, y + 14, bar.label, " text-anchor=\"end\"");
      body += Rectangle(kLabels, y + 2, width, kBar - 5, bar.series);
      body += Text(kLabels + static_cast<int>(width) + 6, y + 14, bar.shown);
      y += kBar;
    }
  }
  const std::string height = std::to_string(y + 20);
  const std::string width = std::to_string(kWidth);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + width + "\" height=\"" + height +
         "\" viewBox=\"0 0 " + width + " " + height +
         "\" font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" "
         "fill=\"white\"/>\n" +
         body + "</svg>\n";
}

}  // namespace pinfeed
