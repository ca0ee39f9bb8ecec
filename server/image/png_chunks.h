// SPDX-License-Identifier: Apache-2.0
// The outer structure of a PNG file. In: its bytes. Out: the chunks that its pixels and its orientation are
// made of, as Pillow finds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/result.h"

namespace pinfeed {

struct PngChunk {
  std::span<const std::byte> whole;  // from its length to its checksum, which may be cut behind the pixels
  std::span<const std::byte> data;
  bool Is(const char (&id)[5]) const;
};

// Purpose: the chunks of a file up to its end marker. Behind the pixels a file may end, or hold what is no
// chunk, anywhere but within a chunk's data. Borrows: the file's bytes. Invariant: every span lies in the
// file.
class PngChunks {
 public:
  // kDataLoss for a file that is cut. Precondition: it starts with the signature.
  Status Scan(std::span<const std::byte> file);

  const std::vector<PngChunk>& all() const { return chunks_; }
  // Of those, the first that holds pixels, and the one behind the last of that run; both the size of all()
  // when there is none.
  size_t pixels_begin() const { return pixels_begin_; }
  size_t pixels_end() const { return pixels_end_; }

  // Whether libspng and Pillow may decode different pixels: the palette size does not fit the depth.
  bool PaletteDiffers() const;
  // Writes to `out` what the pixels depend on and nothing else, with a palette of a colour for each value;
  // as in Pillow a missing one is grey. kDataLoss when a checksum before the pixels is wrong.
  Status Rewrite(std::vector<std::byte>& out) const;

 private:
  bool HasPalette() const;
  size_t PaletteColours() const;  // how many values a pixel can have
  const PngChunk* Palette() const;

  std::vector<PngChunk> chunks_;
  size_t pixels_begin_ = 0;
  size_t pixels_end_ = 0;
};

}  // namespace pinfeed
