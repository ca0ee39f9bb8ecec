// SPDX-License-Identifier: Apache-2.0
// Parses a text that is a number and nothing else.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace pinfeed {

// The number that std::from_chars reads, which knows neither blanks nor a plus sign, in `base` if that is
// given. Nothing if more follows it, or it does not fit.
template <typename Number, typename... Base>
std::optional<Number> ParseNumber(std::string_view text, Base... base) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base...);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace pinfeed
