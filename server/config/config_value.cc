// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <optional>

#include "common/base/ascii_case.h"
#include "common/base/parse_number.h"
#include "common/base/quote.h"
#include "server/config/config_keys.h"

namespace pinfeed {
namespace {

// Splits "8 GiB" into 8 and "GiB".
bool SplitUnit(std::string_view text, double* number, std::string_view* unit) {
  text = Trim(text);
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  *unit = Trim(text.substr(digits));
  const std::optional<double> parsed = ParseNumber<double>(text.substr(0, digits));
  *number = parsed.value_or(0);
  return parsed.has_value();
}

struct Unit {
  std::string_view name;
  double factor;
};
constexpr double kKibi = 1024;
constexpr Unit kSizeUnits[] = {{"", 1},
                               {"B", 1},
                               {"KiB", kKibi},
                               {"MiB", kKibi* kKibi},
                               {"GiB", kKibi* kKibi* kKibi},
                               {"TiB", kKibi* kKibi* kKibi* kKibi},
                               {"kB", 1e3},
                               {"MB", 1e6},
                               {"GB", 1e9},
                               {"TB", 1e12}};
constexpr Unit kTimeUnits[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"min", 60e3}, {"h", 3600e3}};

template <size_t N>
const Unit* FindUnit(const Unit (&units)[N], std::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

}  // namespace

Status ConfigValue::Expected(std::string_view what) const {
  std::string found;
  if (const auto* text = std::get_if<std::string>(&storage_)) {
    found = (text_ ? "" : "the string ") + QuotePath(*text);
  } else if (const auto* integer = std::get_if<int64_t>(&storage_)) {
    found = "the integer " + std::to_string(*integer);
  } else if (const auto* number = std::get_if<double>(&storage_)) {
    found = "the number " + std::to_string(*number);
  } else if (std::holds_alternative<std::vector<std::string>>(storage_)) {
    found = "an array";
  } else {
    found = std::get<Other>(storage_).type;
  }
  return InvalidArgument("expected " + std::string(what) + ", found " + found);
}

Result<uint64_t> ConfigValue::AsUint(uint64_t min, uint64_t max) const {
  const std::string expected = "an integer from " + std::to_string(min) + " to " + std::to_string(max);
  uint64_t value = 0;
  if (const auto* text = std::get_if<std::string>(&storage_); text != nullptr && text_) {
    const std::optional<uint64_t> parsed = ParseNumber<uint64_t>(*text);
    if (!parsed) return Expected(expected);
    value = *parsed;
  } else if (const auto* integer = std::get_if<int64_t>(&storage_); integer != nullptr && *integer >= 0) {
    value = static_cast<uint64_t>(*integer);
  } else {
    return Expected(expected);
  }
  if (value < min || value > max) return Expected(expected);
  return value;
}

Result<std::string> ConfigValue::AsString() const {
  const auto* text = std::get_if<std::string>(&storage_);
  if (text == nullptr) return Expected("a string");
  if (text->find('\0') != std::string::npos) return Expected("a string without NUL bytes");
  return *text;
}

Result<std::string> ConfigValue::AsScalar() const {
  if (const auto* integer = std::get_if<int64_t>(&storage_)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&storage_)) return std::to_string(*number);
  if (const auto* text = std::get_if<std::string>(&storage_)) return *text;
  return Expected("a string or a number");
}

Result<std::vector<std::string>> ConfigValue::AsStrings() const {
  if (const auto* items = std::get_if<std::vector<std::string>>(&storage_)) return *items;
  const auto* text = std::get_if<std::string>(&storage_);
  if (text == nullptr || !text_) return Expected("an array, such as [\"one\", \"two\"]");
  std::vector<std::string> items;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    if (const std::string_view item = Trim(rest.substr(0, comma)); !item.empty()) items.emplace_back(item);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return items;
}

Result<uint32_t> ConfigValue::AsMode() const {
  if (const auto* text = std::get_if<std::string>(&storage_)) {
    std::string_view digits = *text;
    if (digits.starts_with("0o")) digits.remove_prefix(2);  // octal prefix of TOML and Python
    const std::optional<uint32_t> mode = ParseNumber<uint32_t>(digits, 8);
    if (!mode || *mode > 0777) return Expected("permission bits in octal, such as 0660 or 0o660");
    return *mode;
  }
  const auto* integer = std::get_if<int64_t>(&storage_);
  if (integer == nullptr || !octal_ || *integer < 0 || *integer > 0777)
    return Expected("permission bits in octal, such as 0o660");
  return static_cast<uint32_t>(*integer);
}

Result<MemorySize> ConfigValue::AsMemorySize() const {
  const std::string expected =
      "a size above 0 such as \"8GiB\" (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB), or a share such as \"25%\"";
  const Result<std::string> text = AsScalar();
  double number = 0;
  std::string_view unit;
  if (!text.ok() || !SplitUnit(*text, &number, &unit)) return Expected(expected);
  if (unit == "%") {
    if (!(number > 0 && number <= 100)) return Expected(expected);
    return MemorySize{0, number / 100};
  }
  const Unit* found = FindUnit(kSizeUnits, unit);
  // The limit of 2^62 bytes keeps later computations from overflowing.
  if (found == nullptr || number * found->factor < 1 || number * found->factor > 0x1p62)
    return Expected(expected);
  return MemorySize{static_cast<uint64_t>(number * found->factor), 0};
}

Result<std::chrono::milliseconds> ConfigValue::AsDuration(std::chrono::milliseconds least) const {
  const std::string expected =
      "a time from " + std::to_string(least.count()) +
      " ms to 24 hours, such as \"500ms\", \"30s\", \"5min\", \"1h\" or 30 (seconds)";
  const Result<std::string> text = AsScalar();
  double number = 0;
  std::string_view unit;
  if (!text.ok() || !SplitUnit(*text, &number, &unit)) return Expected(expected);
  const Unit* found = FindUnit(kTimeUnits, unit);
  if (found == nullptr) return Expected(expected);
  const double milliseconds = number * found->factor;
  const bool vanishes = milliseconds > 0 && milliseconds < 1;  // it would be 0, which may mean something else
  if (milliseconds < static_cast<double>(least.count()) || milliseconds > 24 * 3600e3 || vanishes)
    return Expected(expected);
  return std::chrono::milliseconds(std::llround(milliseconds));
}

}  // namespace pinfeed
