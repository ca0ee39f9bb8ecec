// SPDX-License-Identifier: Apache-2.0
// Lists in messages.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace pinfeed {

// The texts that `text` makes of the items, with `separator` between them. Precondition: the first is not
// empty.
template <typename Items, typename Text = std::identity>
std::string JoinTexts(const Items& items, std::string_view separator, const Text& text = {}) {
  std::string joined;
  for (const auto& item : items) {
    if (!joined.empty()) joined += separator;
    joined += std::invoke(text, item);
  }
  return joined;
}

}  // namespace pinfeed
