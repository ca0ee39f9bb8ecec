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
};

// Scans all markers, through entropy-coded data as well, without decoding. This is an exact and cheap test
// for truncation, so a decoder may stop after the last row that it needs. Precondition: the file starts with
// the start-of-image marker.
JpegMarkers ScanJpegMarkers(std::span<const std::byte> file);

}  // namespace pinfeed
