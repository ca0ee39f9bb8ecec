// SPDX-License-Identifier: Apache-2.0
// Writes tar archives for tests, member by member.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace pinfeed {

inline constexpr size_t kTarBlock = 512;

inline std::string TarPadded(std::string_view data) {
  std::string padded(data);
  padded.resize((data.size() + kTarBlock - 1) / kTarBlock * kTarBlock, '\0');
  return padded;
}

// Sets the header's checksum.
inline void SignTarHeader(std::string& member) {
  member.replace(148, 8, "        ");
  unsigned sum = 0;
  for (size_t i = 0; i < kTarBlock; ++i) sum += static_cast<uint8_t>(member[i]);
  char text[8];
  std::snprintf(text, sizeof(text), "%06o", sum);
  member.replace(148, 7, std::string_view(text, 7));
}

// A header of the ustar format, and the data behind it.
inline std::string TarMemberBytes(std::string_view name, std::string_view data, char type = '0') {
  std::string header(kTarBlock, '\0');
  header.replace(0, name.size(), name);
  header.replace(100, 7, "0000644");
  char size[12];
  std::snprintf(size, sizeof(size), "%011zo", data.size());
  header.replace(124, 11, size);
  header[156] = type;
  header.replace(257, 8,
                 std::string_view("ustar\0"
                                  "00",
                                  8));
  SignTarHeader(header);
  return header + TarPadded(data);
}

// A record of a pax header.
inline std::string PaxRecord(std::string_view key, std::string_view value) {
  const size_t rest = 3 + key.size() + value.size();
  size_t length = rest + 1;
  while (std::to_string(length).size() + rest != length) ++length;
  return std::to_string(length) + " " + std::string(key) + "=" + std::string(value) + "\n";
}

inline std::string TarEnd() {
  return std::string(2 * kTarBlock, '\0');
}

}  // namespace pinfeed
