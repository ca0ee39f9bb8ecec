// SPDX-License-Identifier: Apache-2.0
// The EXIF Orientation tag. In: a TIFF block as in EXIF. Out: how stored pixels map to displayed ones
// (PIL.ImageOps.exif_transpose).
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "server/image/image.h"

namespace pinfeed {

// The orientation (1 to 8) in the first directory of a TIFF block, by Pillow's rules. The last tag counts,
// and its first value, of any numeric type. 1 for a value that is not an orientation. Empty when there is no
// such tag, or the block is malformed before it.
std::optional<int> TiffOrientation(std::span<const std::byte> tiff);

// Removes the prefix "Exif\0\0", if any.
std::span<const std::byte> WithoutExifId(std::span<const std::byte> block);

// Whether the orientation exchanges width and height.
inline bool OrientationSwapsSides(int orientation) {
  return orientation >= 5;
}

// Maps `box` from the displayed image to the stored image of `width` x `height`.
Box StoredBox(const Box& box, int orientation, int32_t width, int32_t height);

// Writes the displayed form of `stored` to `out`, with packed rows. Precondition: `out` has room for all
// pixels.
ImageView Orient(const ImageView& stored, int orientation, uint8_t* out);

}  // namespace pinfeed
