// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "common/base/quote.h"

namespace pinfeed {

std::string Fixed(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string ByteRate(double bytes_per_second) {
  static constexpr std::array<const char*, 5> kUnits = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
  size_t unit = 0;
  for (; bytes_per_second >= 1000 && unit + 1 < kUnits.size(); ++unit) bytes_per_second /= 1000;
  return Fixed(bytes_per_second, unit == 0 ? 0 : bytes_per_second < 10 ? 2 : 1) + " " + kUnits.at(unit);
}

std::string Duration(double seconds) {
  const auto whole = static_cast<uint64_t>(std::max(seconds, 0.0));
  if (seconds < 1) return Fixed(seconds * 1e3, 0) + " ms";
  if (seconds < 60) return Fixed(seconds, 1) + " s";
  if (whole < 3600) return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
  if (whole < 86400) return std::to_string(whole / 3600) + " h " + std::to_string(whole % 3600 / 60) + " min";
  return std::to_string(whole / 86400) + " d " + std::to_string(whole % 86400 / 3600) + " h";
}

std::string Micros(double nanoseconds) {
  return Fixed(nanoseconds / 1e3, 1) + " us";
}

std::string Count(uint64_t count) {
  std::string text = std::to_string(count);
  for (size_t end = text.size(); end > 3; end -= 3) text.insert(end - 3, 1, ',');
  return text;
}

std::string Counted(uint64_t count, const char* what) {
  return Count(count) + " " + what + (count == 1 ? "" : std::string_view(what).ends_with("ch") ? "es" : "s");
}

std::string Percent(double share) {
  return Fixed(share * 100, 0) + "%";
}

std::string Printable(std::string_view text) {
  return EscapeUnprintable(text);
}

void Table::Add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = Printable(cell);
  rows_.push_back(std::move(row));
}

void Table::Print() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    std::puts(line.c_str());
  }
}

}  // namespace pinfeed
