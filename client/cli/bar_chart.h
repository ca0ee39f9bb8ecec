// SPDX-License-Identifier: Apache-2.0
// A bar chart as an SVG file, written directly: it needs no drawing library.
#pragma once

#include <string>
#include <vector>

namespace pinfeed {

struct Bar {
  std::string label;
  double value = 0;   // >= 0
  std::string shown;  // the value's text
  size_t series = 0;  // selects the colour
};

// Purpose: one chart: panels below each other, each with its own scale. Copyable. Threads: one.
class BarChart {
 public:
  BarChart(std::string title, std::vector<std::string> series)
      : title_(std::move(title)), series_(std::move(series)) {}
  void AddPanel(std::string title, std::vector<Bar> bars) {
    panels_.push_back({std::move(title), std::move(bars)});
  }
  std::string Svg() const;

 private:
  struct Panel {
    std::string title;
    std::vector<Bar> bars;
  };
  const std::string title_;
  const std::vector<std::string> series_;
  std::vector<Panel> panels_;
};

}  // namespace pinfeed
