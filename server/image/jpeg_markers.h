// SPDX-License-Identifier: Apache-2.0
// The outer structure of a JPEG file. In: its bytes. Out: where the EXIF block is and whether the file
// reaches its end marker.
#pragma once

#include <cstddef>
#include <span>

namespace pinfeed {

struct JpegMarkers {
  std::span<const std::byte>
      exif;  // the first EXIF segment before the pixels, from its name on; empty if there is none
  bool complete = false;  // the end-of-image marker was reached
};

// Walks from marker to marker, entropy-coded data included, without decoding: an exact test for truncation
// that costs little, so that a decoder may stop behind the last row it needs. Precondition: the file starts
// with the start-of-image marker.
JpegMarkers ScanJpegMarkers(std::span<const std::byte> file);

}  // namespace pinfeed
