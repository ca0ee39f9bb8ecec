// SPDX-License-Identifier: Apache-2.0
// The Orientation tag. In: a TIFF block as EXIF carries it. Out: how stored pixels become displayed ones
// (PIL.ImageOps.exif_transpose).
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "server/image/image.h"

namespace pinfeed {

// The orientation, 1 to 8, in the first directory of a TIFF block, by Pillow's rules: of several tags the
// last, of several values the first, of any type that is a number. 1 for one that is no orientation; nothing
// when there is no such tag, or the block is malformed before it.
std::optional<int> TiffOrientation(std::span<const std::byte> tiff);

// The block without the "Exif\0\0" that it may begin with.
std::span<const std::byte> WithoutExifId(std::span<const std::byte> block);

// Whether displayed width and height are the stored ones exchanged.
inline bool OrientationSwapsSides(int orientation) {
  return orientation >= 5;
}

// Where the pixels of `box`, given in the displayed image, lie in the stored image of `width` x `height`.
Box StoredBox(const Box& box, int orientation, int32_t width, int32_t height);

// Writes the displayed form of `stored` to `out`, rows packed. Precondition: room for as many pixels.
ImageView Orient(const ImageView& stored, int orientation, uint8_t* out);

}  // namespace pinfeed
