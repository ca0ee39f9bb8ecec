// SPDX-License-Identifier: Apache-2.0
// The order of names that torchvision's ImageFolder gives classes and files: Python's for str.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/quote.h"

namespace pinfeed {

// What sorts, byte by byte, as os.fsdecode(name) sorts by code points: in UTF-8 the two orders are one, and a
// byte that is not UTF-8 counts as the surrogate U+DC00 + byte, between U+D7FF and U+E000 (PEP 383).
std::string NameOrderKey(std::string_view name);

// `name_of` gives an item's name.
template <typename Item, typename NameOf = std::identity>
void SortByName(std::vector<Item>& items, NameOf name_of = {}) {
  if (std::ranges::all_of(items, IsUtf8, name_of)) {
    std::ranges::sort(items, {}, name_of);  // each name is its own key
  } else {
    std::ranges::sort(items, {}, [&](const Item& item) { return NameOrderKey(std::invoke(name_of, item)); });
  }
}

}  // namespace pinfeed
