// SPDX-License-Identifier: Apache-2.0
#include "server/image/jpeg_markers.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace pinfeed {
namespace {

// Purpose: decides whether a file is plain (JpegMarkers), by its markers in order.
class PlainCheck {
 public:
  // A marker without parameters, with `fill` bytes 0xFF before its code.
  void Bare(uint8_t marker, size_t fill) {
    const bool stuffed = marker == 0 && fill == 1;
    const bool next = marker == 0xD0 + (restarts_ & 7);
    if (next) ++restarts_;
    plain_ &= scans_ == 1 && (stuffed || next);
  }
  void Segment(uint8_t marker) {
    plain_ &= scans_ == 0;
    if (marker == 0xDA) {
      ++scans_;
    } else if (marker == 0xC4) {
      has_tables_ = true;  // without any, libjpeg takes those of the standard, and others may not
    } else if (marker >= 0xC0 && marker <= 0xCF) {
      plain_ &= marker == 0xC0 && ++frames_ == 1;
    }
  }
  bool plain() const { return plain_ && has_tables_ && scans_ == 1 && frames_ == 1; }
  size_t restarts() const { return restarts_; }

 private:
  bool plain_ = true;
  bool has_tables_ = false;
  int scans_ = 0;
  int frames_ = 0;
  size_t restarts_ = 0;
};

constexpr size_t kStep = 256;

// Passes over entropy-coded data in which each 0xFF is followed by 0, as nearly all are. Returns a place at
// or before the first other 0xFF. The loop compiles to vector instructions; a call of memchr for each 0xFF
// takes more than twice as long.
size_t PassStuffedZeros(const uint8_t* bytes, size_t at, size_t size) {
  for (; size - at > kStep; at += kStep) {
    uint8_t behind = 0;  // an 0xFF
    for (size_t i = at; i < at + kStep; ++i)
      behind |= static_cast<uint8_t>(bytes[i + 1] & -static_cast<int>(bytes[i] == 0xFF));
    if (behind != 0) break;
  }
  return at;
}

}  // namespace

JpegMarkers ScanJpegMarkers(std::span<const std::byte> file) {
  constexpr std::string_view kExifId("Exif\0", 5);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(file.data());
  const size_t size = file.size();
  JpegMarkers found;
  PlainCheck check;
  size_t at = 2;
  bool exif = false;     // the first segment of that name counts, whatever its contents
  bool header = true;    // until the first scan
  size_t next_pass = 0;  // where another one may pay
  while (at < size) {
    // In entropy-coded data, every 0xFF is followed by 0 or a restart marker (ITU-T T.81, B.1.1.5).
    if (!header && at >= next_pass) {
      at = PassStuffedZeros(bytes, at, size);
      next_pass = at + kStep;  // it has stopped at an 0xFF before that, or at the end
    }
    const void* const ff = std::memchr(bytes + at, 0xFF, size - at);
    if (ff == nullptr) return found;
    at = static_cast<size_t>(static_cast<const uint8_t*>(ff) - bytes);
    const size_t first = at;
    while (at < size && bytes[at] == 0xFF) ++at;  // fill bytes
    if (at == size) return found;
    const uint8_t marker = bytes[at++];
    const bool is_restart = marker >= 0xD0 && marker <= 0xD7;
    found.stray |= !header && marker != 0 && marker != 0xD9 && !is_restart;
    if (marker <= 0x01 || is_restart || marker == 0xD8) {
      check.Bare(marker, at - 1 - first);  // stuffed zero, TEM, RSTn, SOI: no parameters
      continue;
    }
    if (marker == 0xD9) {
      found.complete = true;
      found.end = at;
      found.plain = check.plain();
      found.restarts = check.restarts();
      return found;
    }
    if (size - at < 2) return found;
    const size_t length = size_t{bytes[at]} << 8 | bytes[at + 1];
    if (length > size - at) return found;
    check.Segment(marker);
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
