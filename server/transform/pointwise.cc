// SPDX-License-Identifier: Apache-2.0
#include "server/transform/pointwise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "server/transform/pointwise_half.h"

namespace pinfeed {
namespace {

uint32_t Bits(DType dtype, float value) {
  switch (dtype) {
    case DType::kFloat16:
      return FloatToHalf(value);
    case DType::kBfloat16:
      return FloatToBfloat16(value);
    case DType::kUint8:
      return static_cast<uint32_t>(value);
    default:
      return std::bit_cast<uint32_t>(value);
  }
}

}  // namespace

float RoundTo(DType dtype, float value) {
  switch (dtype) {
    case DType::kFloat16:
      return HalfToFloat(FloatToHalf(value));
    case DType::kBfloat16:
      return Bfloat16ToFloat(FloatToBfloat16(value));
    case DType::kUint8:
      return std::trunc(std::clamp(value, 0.0F, 255.0F));
    default:
      return value;
  }
}

Pointwise::Pointwise(const TransformChain& transforms, size_t channels, ImageLayout layout)
    : channels_(channels), layout_(layout) {
  for (size_t c = 0; c < channels; ++c) {
    const PixelValues pixels = transforms.Recolour(c);
    dtype_ = pixels.dtype;
    for (const float value : pixels.values) table_.push_back(Bits(dtype_, value));
  }
  copies_ = dtype_ == DType::kUint8 && channels == 3 && layout == ImageLayout::kHwc;
  for (size_t i = 0; copies_ && i < table_.size(); ++i) copies_ = table_[i] == i % 256;
}

namespace {

using Table = const uint32_t*;  // 256 elements

// One row of three planes. As many elements as fill 32 bits go in one store: with one store an element, the
// two-byte and one-byte types take twice as long as float32.
template <typename Element>
void PlanarRow(const uint8_t* pixel, ptrdiff_t step, size_t width, const Table tables[3], Element* out,
               size_t plane) {
  static_assert(std::endian::native == std::endian::little);
  constexpr size_t kPack = 4 / sizeof(Element);
  size_t x = 0;
  for (; x + kPack <= width; x += kPack) {
    uint32_t packed[3] = {0, 0, 0};
    for (size_t k = 0; k < kPack; ++k, pixel += step) {
      for (size_t c = 0; c < 3; ++c) packed[c] |= tables[c][pixel[c]] << (8 * sizeof(Element) * k);
    }
    for (size_t c = 0; c < 3; ++c) std::memcpy(out + c * plane + x, &packed[c], 4);
  }
  for (; x < width; ++x, pixel += step) {
    for (size_t c = 0; c < 3; ++c) out[c * plane + x] = static_cast<Element>(tables[c][pixel[c]]);
  }
}

}  // namespace

template <typename Element>
void Pointwise::RunAs(const ImageView& image, bool flip, Element* out) const {
  const Table tables[3] = {table_.data(), &table_[256 * (channels_ == 1 ? 0 : 1)],
                           &table_[256 * (channels_ == 1 ? 0 : 2)]};
  const auto width = static_cast<size_t>(image.width);
  const size_t plane = width * static_cast<size_t>(image.height);
  const ptrdiff_t step = flip ? -3 : 3;
  for (int32_t y = 0; y < image.height; ++y) {
    const uint8_t* pixel = image.Row(y) + (flip ? 3 * (width - 1) : 0);
    if (channels_ == 1) {
      for (size_t x = 0; x < width; ++x, pixel += step) *out++ = static_cast<Element>(tables[0][pixel[0]]);
    } else if (layout_ == ImageLayout::kChw) {
      PlanarRow(pixel, step, width, tables, out, plane);
      out += width;
    } else {
      for (size_t x = 0; x < width; ++x, pixel += step) {
        for (size_t c = 0; c < 3; ++c) *out++ = static_cast<Element>(tables[c][pixel[c]]);
      }
    }
  }
}

void Pointwise::Run(const ImageView& image, bool flip, std::span<std::byte> out) const {
  if (copies_ && !flip) return CopyPixels(image, reinterpret_cast<uint8_t*>(out.data()));
  switch (DTypeSize(dtype_)) {
    case 1:
      return RunAs(image, flip, reinterpret_cast<uint8_t*>(out.data()));
    case 2:
      return RunAs(image, flip, reinterpret_cast<uint16_t*>(out.data()));
    default:
      return RunAs(image, flip, reinterpret_cast<uint32_t*>(out.data()));
  }
}

}  // namespace pinfeed
