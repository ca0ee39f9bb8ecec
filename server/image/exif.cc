// SPDX-License-Identifier: Apache-2.0
#include "server/image/exif.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace pinfeed {
namespace {

// Which stored axes are reversed in the displayed image (Exif 2.32, 4.6.4.A, Orientation), after exchanging
// the axes for 5 to 8.
bool ReversesX(int orientation) {
  return orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
}
bool ReversesY(int orientation) {
  return orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
}

// Reads integers of either byte order with bounds checks. Returns 0 beyond the end.
class TiffReader {
 public:
  TiffReader(std::span<const std::byte> bytes, bool little) : bytes_(bytes), little_(little) {}
  bool Has(uint64_t at, uint64_t count) const { return at <= bytes_.size() && bytes_.size() - at >= count; }
  uint64_t Read(uint64_t at, unsigned count) const {
    if (!Has(at, count)) return 0;
    uint64_t value = 0;
    for (unsigned i = 0; i < count; ++i) {
      const unsigned shift = 8 * (little_ ? i : count - 1 - i);
      value |= std::to_integer<uint64_t>(bytes_[at + i]) << shift;
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool little_;
};

// The bytes of one value of a TIFF type; 0 for an unknown type.
unsigned TypeBytes(uint64_t type) {
  static constexpr std::array<uint8_t, 17> kBytes = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
  return type < kBytes.size() ? kBytes[type] : 0;
}

// The first value of a tag, if it equals 1 to 8 as Pillow compares it; otherwise 0.
int OrientationOf(const TiffReader& tiff, uint64_t type, uint64_t at) {
  double value = 0;
  const uint64_t bits = tiff.Read(at, type == 5 || type == 10 ? 4 : TypeBytes(type));
  switch (type) {
    case 3:   // SHORT
    case 4:   // LONG
    case 13:  // IFD
    case 16:  // LONG8
      value = static_cast<double>(bits);
      break;
    case 6:  // SBYTE
      value = static_cast<int8_t>(bits);
      break;
    case 8:  // SSHORT
      value = static_cast<int16_t>(bits);
      break;
    case 9:  // SLONG
      value = static_cast<int32_t>(bits);
      break;
    case 5:     // RATIONAL
    case 10: {  // SRATIONAL
      const uint64_t below = tiff.Read(at + 4, 4);
      const bool has_sign = type == 10;
      const double numerator = has_sign ? static_cast<int32_t>(bits) : static_cast<double>(bits);
      const double denominator = has_sign ? static_cast<int32_t>(below) : static_cast<double>(below);
      if (denominator != 0) value = numerator / denominator;
      break;
    }
    case 11:  // FLOAT
      value = std::bit_cast<float>(static_cast<uint32_t>(bits));
      break;
    case 12:  // DOUBLE
      value = std::bit_cast<double>(bits);
      break;
    default:  // bytes and text are not numbers
      break;
  }
  for (int orientation = 1; orientation <= 8; ++orientation) {
    if (value == orientation) return orientation;
  }
  return 0;
}

}  // namespace

std::span<const std::byte> WithoutExifId(std::span<const std::byte> block) {
  static constexpr std::string_view kId("Exif\0\0", 6);
  const bool has_id = block.size() >= kId.size() && std::memcmp(block.data(), kId.data(), kId.size()) == 0;
  return has_id ? block.subspan(kId.size()) : block;
}

std::optional<int> TiffOrientation(std::span<const std::byte> tiff) {
  static constexpr std::array<std::string_view, 5> kHeaders = {
      std::string_view("MM\0*", 4), std::string_view("II*\0", 4), std::string_view("MM*\0", 4),
      std::string_view("II\0*", 4), std::string_view("MM\0+", 4)};
  if (tiff.size() < 8) return std::nullopt;
  const std::string_view header(reinterpret_cast<const char*>(tiff.data()), 4);
  if (std::find(kHeaders.begin(), kHeaders.end(), header) == kHeaders.end()) return std::nullopt;
  const TiffReader reader(tiff, header[0] == 'I');
  const uint64_t directory = reader.Read(4, 4);
  const uint64_t entries = reader.Read(directory, 2);
  std::optional<int> orientation;  // the last tag counts
  for (uint64_t i = 0; i < entries; ++i) {
    const uint64_t entry = directory + 2 + uint64_t{12} * i;
    if (!reader.Has(entry, 12)) break;
    const uint64_t type = reader.Read(entry + 2, 2);
    const uint64_t bytes = reader.Read(entry + 4, 4) * TypeBytes(type);  // at most 2^35
    if (bytes == 0) continue;
    const uint64_t at = bytes > 4 ? reader.Read(entry + 8, 4) : entry + 8;
    if (!reader.Has(at, bytes)) break;  // the rest of the directory is not trusted
    if (reader.Read(entry, 2) == 0x0112) orientation = std::max(1, OrientationOf(reader, type, at));
  }
  return orientation;
}

Box StoredBox(const Box& box, int orientation, int32_t width, int32_t height) {
  Box stored = box;
  if (OrientationSwapsSides(orientation)) stored = {box.y, box.x, box.height, box.width};
  if (ReversesX(orientation)) stored.x = width - stored.x - stored.width;
  if (ReversesY(orientation)) stored.y = height - stored.y - stored.height;
  return stored;
}

ImageView Orient(const ImageView& stored, int orientation, uint8_t* out) {
  const bool swap = OrientationSwapsSides(orientation);
  const int32_t width = swap ? stored.height : stored.width;
  const int32_t height = swap ? stored.width : stored.height;
  ptrdiff_t step_x = 3;  // in the stored image
  auto step_y = static_cast<ptrdiff_t>(stored.stride);
  const uint8_t* origin = stored.data;
  if (ReversesX(orientation)) {
    origin += step_x * (stored.width - 1);
    step_x = -step_x;
  }
  if (ReversesY(orientation)) {
    origin += step_y * (stored.height - 1);
    step_y = -step_y;
  }
  if (swap) std::swap(step_x, step_y);
  // Works in tiles, because in a transposition consecutive pixels of one side are in different cache lines.
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
