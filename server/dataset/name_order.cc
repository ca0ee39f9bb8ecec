// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/name_order.h"

#include <cstdint>

namespace pinfeed {

std::string NameOrderKey(std::string_view name) {
  std::string key;
  key.reserve(name.size());
  while (!name.empty()) {
    const size_t length = Utf8Length(name);
    if (length == 0) {
      // Encodes the surrogate, U+DC80 to U+DCFF, in the three bytes that UTF-8 would use for it.
      const auto byte = static_cast<uint8_t>(name[0]);
      key += '\xED';
      key += static_cast<char>(0xB0 | byte >> 6);
      key += static_cast<char>(0x80 | (byte & 0x3F));
      name.remove_prefix(1);
    } else {
      key += name.substr(0, length);
      name.remove_prefix(length);
    }
  }
  return key;
}

}  // namespace pinfeed
