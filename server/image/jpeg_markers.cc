// SPDX-License-Identifier: Apache-2.0
#include "server/image/jpeg_markers.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace pinfeed {

JpegMarkers ScanJpegMarkers(std::span<const std::byte> file) {
  constexpr std::string_view kExifId("Exif\0", 5);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(file.data());
  const size_t size = file.size();
  JpegMarkers found;
  size_t at = 2;
  bool exif = false;   // the first segment of that name counts, whatever its contents
  bool header = true;  // until the first scan
  while (at < size) {
    // In entropy-coded data, every 0xFF is followed by 0 or a restart marker (ITU-T T.81, B.1.1.5).
    const void* const ff = std::memchr(bytes + at, 0xFF, size - at);
    if (ff == nullptr) return found;
    at = static_cast<size_t>(static_cast<const uint8_t*>(ff) - bytes);
    while (at < size && bytes[at] == 0xFF) ++at;  // fill bytes
    if (at == size) return found;
    const uint8_t marker = bytes[at++];
    if (marker <= 0x01 || (marker >= 0xD0 && marker <= 0xD8))
      continue;  // stuffed zero, TEM, RSTn, SOI: no parameters
    if (marker == 0xD9) {
      found.complete = true;
      return found;
    }
    if (size - at < 2) return found;
    const size_t length = size_t{bytes[at]} << 8 | bytes[at + 1];
    if (length > size - at) return found;
    if (marker == 0xDA) header = false;
    if (marker == 0xE1 && header && !exif && length >= 2 + kExifId.size() &&
        std::memcmp(bytes + at + 2, kExifId.data(), kExifId.size()) == 0) {
      exif = true;
      found.exif = file.subspan(at + 2, length - 2);
    }
    at += std::max<size_t>(length, 2);  // libjpeg also treats a shorter segment as empty
  }
  return found;
}

}  // namespace pinfeed
