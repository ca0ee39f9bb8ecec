// SPDX-License-Identifier: Apache-2.0
// Numbers and plain structs in the bytes of files of the daemon's own.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace pinfeed {

static_assert(std::endian::native == std::endian::little, "such files are little-endian");

// Precondition: `bytes` has a T at `offset`.
template <typename T>
T ReadAs(std::string_view bytes, uint64_t offset) {
  static_assert(std::has_unique_object_representations_v<T>, "no padding is read or written");
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

template <typename T>
void AppendAs(const T& value, std::string& bytes) {
  static_assert(std::has_unique_object_representations_v<T>, "no padding is read or written");
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace pinfeed
