// SPDX-License-Identifier: Apache-2.0
// .npy files for tests, byte by byte, so that wrong ones can be made as easily as right ones.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pinfeed {

// Magic, version `major`.0, the dictionary's length and the dictionary as given.
inline std::string NpyHeaderBytes(std::string_view dictionary, int major = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(major);
  bytes += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) bytes += static_cast<char>(dictionary.size() >> (8 * i));
  return bytes.append(dictionary);
}

// The header as numpy writes it, padded with spaces to a multiple of 64.
inline std::string NpyHeaderBytes(std::string_view descr, std::string_view shape, bool fortran_order,
                                  int major = 1) {
  std::string dictionary = "{'descr': '" + std::string(descr) +
                           "', 'fortran_order': " + (fortran_order ? "True" : "False") +
                           ", 'shape': " + std::string(shape) + ", }";
  const size_t preamble = major == 1 ? 10 : 12;
  while ((preamble + dictionary.size() + 1) % 64 != 0) dictionary += ' ';
  return NpyHeaderBytes(dictionary + '\n', major);
}

// The bytes of `values` as they lie in memory.
template <typename T>
std::string RawBytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Back again.
template <typename T>
std::vector<T> ValuesOf(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace pinfeed
