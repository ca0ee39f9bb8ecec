// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any bytes through DecodeImage, then a region of them. The region must hold the same
// pixels as the whole, and the two must agree on whether the file is bad.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "server/image/decode.h"

namespace {

// Larger images say nothing new and take long.
constexpr int64_t kMaxFuzzPixels = 1 << 20;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using pinfeed::Box;
  using pinfeed::ImageDecoder;
  using pinfeed::ImageSize;
  using pinfeed::ImageView;
  static ImageDecoder whole_decoder;
  static ImageDecoder part_decoder;
  const auto file = std::as_bytes(std::span(data, size));
  const pinfeed::Result<ImageSize> opened = whole_decoder.Open(file);
  if (!opened.ok()) return 0;
  const ImageSize image = opened.value();
  if (int64_t{image.width} * image.height > kMaxFuzzPixels) return 0;
  const pinfeed::Result<ImageView> whole = whole_decoder.Decode({0, 0, image.width, image.height});
  const int32_t x = image.width / 3;
  const int32_t y = image.height / 4;
  const Box box{x, y, (image.width - x + 1) / 2, (image.height - y + 1) / 2};
  if (!part_decoder.Open(file, false).ok()) std::abort();  // what needs no orientation needs no more
  if (!part_decoder.Open(file).ok()) std::abort();
  const pinfeed::Result<ImageView> part = part_decoder.Decode(box);
  if (part.ok() != whole.ok()) std::abort();
  if (!whole.ok()) return 0;
  const ImageView expected = whole.value().Crop(box);
  for (int32_t row = 0; row < box.height; ++row) {
    if (std::memcmp(expected.Row(row), part.value().Row(row), 3 * static_cast<size_t>(box.width)) != 0)
      std::abort();
  }
  return 0;
}
