// SPDX-License-Identifier: Apache-2.0
// The outer structure of a PNG file. In: its bytes. Out: the chunks that determine its pixels and
// orientation, as Pillow finds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/result.h"

namespace pinfeed {

struct PngChunk {
  std::span<const std::byte> whole;  // from length to checksum; may be truncated after the pixels
  std::span<const std::byte> data;
  bool Is(const char (&id)[5]) const;
};

// Purpose: the chunks of a file up to its end marker. After the pixels, a file may end or contain other data
// anywhere except within a chunk's data. Borrows: the file's bytes. Invariant: every span lies within the
// file.
class PngChunks {
 public:
  // kDataLoss for a truncated file, kResourceExhausted for one of millions of chunks. Precondition: the file
  // starts with the signature.
  Status Scan(std::span<const std::byte> file);

  const std::vector<PngChunk>& all() const { return chunks_; }
  // The range in all() of the first run of pixel chunks. Both equal the size of all() when there is none.
  size_t pixels_begin() const { return pixels_begin_; }
  size_t pixels_end() const { return pixels_end_; }

  // Whether libspng and Pillow may decode different pixels, because the palette size does not fit the depth.
  bool PaletteDiffers() const;
  // Writes to `out` only what the pixels depend on, with a palette extended to every possible value. As in
  // Pillow, missing colours are black. kDataLoss when a checksum before the pixels is wrong; the errors of
  // ResizeForSample.
  Status Rewrite(std::vector<std::byte>& out) const;

 private:
  bool HasPalette() const;
  size_t PaletteColours() const;  // number of possible pixel values
  const PngChunk* Palette() const;

  std::vector<PngChunk> chunks_;
  size_t pixels_begin_ = 0;
  size_t pixels_end_ = 0;
};

}  // namespace pinfeed
