// SPDX-License-Identifier: Apache-2.0
// Sorts names as torchvision's ImageFolder sorts classes and files, which is Python's order of str.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/quote.h"

namespace pinfeed {

// Returns a key whose bytewise order is the order of os.fsdecode(name) by code points. For valid UTF-8 the
// two orders are equal. A byte that is not UTF-8 sorts as the surrogate U+DC00 + byte (PEP 383).
std::string NameOrderKey(std::string_view name);

// Sorts items by name; `name_of` returns the name of an item.
template <typename Item, typename NameOf = std::identity>
void SortByName(std::vector<Item>& items, NameOf name_of = {}) {
  if (std::ranges::all_of(items, IsUtf8, name_of)) {
    std::ranges::sort(items, {}, name_of);  // bytewise order is already right
  } else {
    std::ranges::sort(items, {}, [&](const Item& item) { return NameOrderKey(std::invoke(name_of, item)); });
  }
}

}  // namespace pinfeed
