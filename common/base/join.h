// SPDX-License-Identifier: Apache-2.0
// Lists in messages.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace pinfeed {

// The texts that `text` makes of the items, with `separator` between them.
template <typename Items, typename Text = std::identity>
std::string JoinTexts(const Items& items, std::string_view separator, const Text& text = {}) {
  std::string joined;
  std::string_view between;
  for (const auto& item : items) {
    joined += between;
    joined += std::invoke(text, item);
    between = separator;
  }
  return joined;
}

}  // namespace pinfeed
