// SPDX-License-Identifier: Apache-2.0
// Bars side by side in an SVG file: text with a few rectangles, which every browser shows and no library has
// to draw.
#pragma once

#include <string>
#include <vector>

namespace pinfeed {

struct Bar {
  std::string label;
  double value = 0;   // >= 0
  std::string shown;  // the value as text
  size_t series = 0;  // gives the colour
};

// Purpose: one chart: panels with a scale of their own, below each other. A value; one thread.
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
