// SPDX-License-Identifier: Apache-2.0
#include "common/base/byte_size.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace pinfeed {

std::string ByteSize(uint64_t bytes) {
  static constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  // Avoids printing 1023.97 KiB as 1024 KiB.
  for (; value >= 1023.95 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  const double rounded = std::round(value * 10) / 10;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), rounded == std::floor(rounded) ? "%.0f %s" : "%.1f %s", rounded,
                kUnits.at(unit));
  return text.data();
}

std::string ExactByteSize(uint64_t bytes) {
  const std::string exact = std::to_string(bytes) + " bytes";
  return bytes < 1024 ? exact : ByteSize(bytes) + " (" + exact + ")";
}

}  // namespace pinfeed
