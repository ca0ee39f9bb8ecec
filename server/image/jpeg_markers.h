// SPDX-License-Identifier: Apache-2.0
// The outer structure of a JPEG file. In: its bytes. Out: the EXIF block, and whether the file reaches its
// end marker.
#pragma once

#include <cstddef>
#include <span>

namespace pinfeed {

struct JpegMarkers {
  // The first EXIF segment before the pixels, starting at its name; empty if there is none.
  std::span<const std::byte> exif;
  bool complete = false;  // the end-of-image marker was reached
  size_t end = 0;         // the bytes up to and with that marker
  // A marker other than restarts and the end stands behind the start of the first scan. In a file of one
  // scan, libjpeg stops decoding there.
  bool stray = false;
  // One baseline frame of one scan, whose data has nothing but stuffed bytes and restart markers in order:
  // what any decoder reads in the same way.
  bool plain = false;
  size_t restarts = 0;  // markers of a plain file
};

// Scans all markers, through entropy-coded data as well, without decoding. This is an exact and cheap test
// for truncation, so a decoder may stop after the last row that it needs. Precondition: the file starts with
// the start-of-image marker.
JpegMarkers ScanJpegMarkers(std::span<const std::byte> file);

}  // namespace pinfeed
