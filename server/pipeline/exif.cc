// SPDX-License-Identifier: Apache-2.0
#include "server/pipeline/exif.h"

#include <algorithm>
#include <cstdint>

namespace pinfeed {
namespace {

// Which stored axes run backwards in the displayed image (Exif 2.32, 4.6.4.A, Orientation), after exchanging
// the axes for 5 to 8.
bool BackwardsX(int orientation) {
  return orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
}
bool BackwardsY(int orientation) {
  return orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
}

// Bounds-checked integers of either byte order; 0 behind the end.
class TiffReader {
 public:
  TiffReader(std::span<const std::byte> bytes, bool little) : bytes_(bytes), little_(little) {}
  uint32_t Read(uint64_t at, unsigned count) const {
    if (at > bytes_.size() || bytes_.size() - at < count) return 0;
    uint32_t value = 0;
    for (unsigned i = 0; i < count; ++i) {
      const unsigned shift = 8 * (little_ ? i : count - 1 - i);
      value |= std::to_integer<uint32_t>(bytes_[at + i]) << shift;
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool little_;
};

}  // namespace

int ExifOrientation(std::span<const std::byte> tiff) {
  if (tiff.size() < 8) return 1;
  const bool little = tiff[0] == std::byte{'I'} && tiff[1] == std::byte{'I'};
  const bool big = tiff[0] == std::byte{'M'} && tiff[1] == std::byte{'M'};
  const TiffReader reader(tiff, little);
  if ((!little && !big) || reader.Read(2, 2) != 42) return 1;
  const uint64_t directory = reader.Read(4, 4);
  const uint32_t entries = reader.Read(directory, 2);
  for (uint32_t i = 0; i < entries; ++i) {
    const uint64_t entry = directory + 2 + uint64_t{12} * i;
    if (entry + 12 > tiff.size()) return 1;
    if (reader.Read(entry, 2) != 0x0112) continue;
    const uint32_t type = reader.Read(entry + 2, 2);
    if (reader.Read(entry + 4, 4) != 1) return 1;
    const uint32_t value = type == 3 ? reader.Read(entry + 8, 2) : type == 4 ? reader.Read(entry + 8, 4) : 1;
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Box StoredBox(const Box& box, int orientation, int32_t width, int32_t height) {
  Box stored = box;
  if (OrientationSwapsSides(orientation)) stored = {box.y, box.x, box.height, box.width};
  if (BackwardsX(orientation)) stored.x = width - stored.x - stored.width;
  if (BackwardsY(orientation)) stored.y = height - stored.y - stored.height;
  return stored;
}

ImageView Orient(const ImageView& stored, int orientation, uint8_t* out) {
  const bool swap = OrientationSwapsSides(orientation);
  const int32_t width = swap ? stored.height : stored.width;
  const int32_t height = swap ? stored.width : stored.height;
  ptrdiff_t step_x = 3;  // in the stored image
  auto step_y = static_cast<ptrdiff_t>(stored.stride);
  const uint8_t* origin = stored.data;
  if (BackwardsX(orientation)) {
    origin += step_x * (stored.width - 1);
    step_x = -step_x;
  }
  if (BackwardsY(orientation)) {
    origin += step_y * (stored.height - 1);
    step_y = -step_y;
  }
  if (swap) std::swap(step_x, step_y);
  // In tiles: along one side of a transposition every pixel is in another cache line.
  constexpr int32_t kTile = 32;
  for (int32_t y0 = 0; y0 < height; y0 += kTile) {
    for (int32_t x0 = 0; x0 < width; x0 += kTile) {
      for (int32_t y = y0; y < std::min(y0 + kTile, height); ++y) {
        uint8_t* to =
            out + 3 * (static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x0));
        for (int32_t x = x0; x < std::min(x0 + kTile, width); ++x, to += 3) {
          const uint8_t* from = origin + step_y * y + step_x * x;
          to[0] = from[0];
          to[1] = from[1];
          to[2] = from[2];
        }
      }
    }
  }
  return {out, width, height, 3 * static_cast<size_t>(width)};
}

}  // namespace pinfeed
