// SPDX-License-Identifier: Apache-2.0
#include "server/transform/pointwise.h"

#include <bit>
#include <cmath>
#include <numeric>

#include "server/transform/pointwise_half.h"
#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"

namespace pinfeed {
namespace {

template <typename Element>
std::vector<Element> Tensor(const Pointwise& pointwise, const std::vector<uint8_t>& pixels, int32_t width,
                            int32_t height, size_t channels, bool flip) {
  std::vector<uint8_t> padded = pixels;
  padded.resize(pixels.size() + kRowSlack);
  std::vector<Element> out(channels * static_cast<size_t>(width * height));
  pointwise.Run({padded.data(), width, height, 3 * static_cast<size_t>(width)}, flip,
                std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(PointwiseTest, LaysOutAndMirrorsEveryWidth) {
  for (int32_t width = 1; width <= 13; ++width) {
    constexpr int32_t kRows = 2;
    std::vector<uint8_t> pixels(3 * static_cast<size_t>(width * kRows));
    std::iota(pixels.begin(), pixels.end(), uint8_t{0});
    for (const bool flip : {false, true}) {
      for (const ImageLayout layout : {ImageLayout::kChw, ImageLayout::kHwc}) {
        for (const DType dtype : {DType::kUint8, DType::kFloat32, DType::kBfloat16}) {
          const std::vector<TransformSpec> transforms = {ToDtype{dtype, false}};
          const Pointwise pointwise(ChainOf(transforms), 3, layout);
          std::vector<float> values;
          if (dtype == DType::kUint8) {
            for (const uint8_t v : Tensor<uint8_t>(pointwise, pixels, width, kRows, 3, flip))
              values.push_back(v);
          } else if (dtype == DType::kFloat32) {
            values = Tensor<float>(pointwise, pixels, width, kRows, 3, flip);
          } else {
            for (const uint16_t v : Tensor<uint16_t>(pointwise, pixels, width, kRows, 3, flip)) {
              values.push_back(Bfloat16ToFloat(v));
            }
          }
          for (int32_t y = 0; y < kRows; ++y) {
            for (int32_t x = 0; x < width; ++x) {
              for (int32_t c = 0; c < 3; ++c) {
                const int32_t from = 3 * (y * width + (flip ? width - 1 - x : x)) + c;
                const int32_t to =
                    layout == ImageLayout::kChw ? (c * kRows + y) * width + x : 3 * (y * width + x) + c;
                ASSERT_EQ(values[static_cast<size_t>(to)],
                          static_cast<float>(pixels[static_cast<size_t>(from)]))
                    << width << " " << x << " " << y << " " << c;
              }
            }
          }
        }
      }
    }
  }
}

// What the whole tensor copies, a crop of a wider image does not.
TEST(PointwiseTest, UnchangedBytesOfACropAreItsOwn) {
  std::vector<uint8_t> pixels(3 * 5 * 4 + kRowSlack);
  std::iota(pixels.begin(), pixels.end(), uint8_t{0});
  const ImageView crop = ImageView{pixels.data(), 5, 4, 3 * 5}.Crop({1, 2, 2, 2});
  const Pointwise pointwise(TransformChain(), 3, ImageLayout::kHwc);
  std::vector<uint8_t> out(3 * 2 * 2);
  pointwise.Run(crop, false, std::as_writable_bytes(std::span(out)));
  EXPECT_THAT(out, ElementsAre(33, 34, 35, 36, 37, 38, 48, 49, 50, 51, 52, 53));
  pointwise.Run(crop, true, std::as_writable_bytes(std::span(out)));
  EXPECT_THAT(out, ElementsAre(36, 37, 38, 33, 34, 35, 51, 52, 53, 48, 49, 50));
}

// Whole rows are copied at once, unless they lie in reverse order.
TEST(PointwiseTest, UnchangedBytesOfWholeRowsAreItsOwn) {
  std::vector<uint8_t> pixels(3 * 2 * 4 + kRowSlack);
  std::iota(pixels.begin(), pixels.end(), uint8_t{0});
  const ImageView rows = ImageView{pixels.data(), 2, 4, 3 * 2}.Crop({0, 1, 2, 2});
  const Pointwise pointwise(TransformChain(), 3, ImageLayout::kHwc);
  std::vector<uint8_t> out(3 * 2 * 2 + 1, 255);
  const auto place = std::as_writable_bytes(std::span(out)).first(3 * 2 * 2);
  pointwise.Run(rows, false, place);
  EXPECT_THAT(out, ElementsAre(6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 255));
  pointwise.Run(rows.UpsideDown(), false, place);
  EXPECT_THAT(out, ElementsAre(12, 13, 14, 15, 16, 17, 6, 7, 8, 9, 10, 11, 255));
}

TEST(PointwiseTest, OneChannelTakesTheFirst) {
  const Pointwise pointwise(TransformChain(), 1, ImageLayout::kChw);
  EXPECT_THAT(Tensor<uint8_t>(pointwise, {1, 1, 1, 2, 2, 2, 3, 3, 3}, 3, 1, 1, true), ElementsAre(3, 2, 1));
}

TEST(PointwiseTest, NormalizeOfBytesScalesFirst) {
  const std::vector<TransformSpec> bare = {Normalize{{0.5, 0.25, 0}, {0.5, 0.25, 1}}};
  const Pointwise pointwise(ChainOf(bare), 3, ImageLayout::kHwc);
  EXPECT_EQ(pointwise.dtype(), DType::kFloat32);
  EXPECT_THAT(Tensor<float>(pointwise, {255, 51, 51}, 1, 1, 3, false),
              ElementsAre((1.0F - 0.5F) / 0.5F, (51 / 255.0F - 0.25F) / 0.25F, 51 / 255.0F));
  const std::vector<TransformSpec> unscaled = {ToDtype{DType::kFloat32, false}, Normalize{{5}, {2}}};
  EXPECT_THAT(Tensor<float>(Pointwise(ChainOf(unscaled), 3, ImageLayout::kHwc), {255, 51, 5}, 1, 1, 3, false),
              ElementsAre(125, 23, 0));
}

TEST(PointwiseTest, BackToBytesCutsAndTruncates) {
  const std::vector<TransformSpec> there_and_back = {ToDtype{DType::kFloat32, true},
                                                     ToDtype{DType::kUint8, true}};
  std::vector<uint8_t> all(256 * 3);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i / 3);
  EXPECT_EQ(Tensor<uint8_t>(Pointwise(ChainOf(there_and_back), 3, ImageLayout::kHwc), all, 256, 1, 3, false),
            all);
  const std::vector<TransformSpec> beyond = {ToDtype{DType::kFloat32, false}, Normalize{{100}, {0.5}},
                                             ToDtype{DType::kUint8, false}};
  EXPECT_THAT(
      Tensor<uint8_t>(Pointwise(ChainOf(beyond), 3, ImageLayout::kHwc), {0, 110, 255}, 1, 1, 3, false),
      ElementsAre(0, 20, 255));
}

// Against the definition: of the two neighbours the nearer one, of two equally near ones the even one.
TEST(PointwiseTest, HalfRoundsToTheNearestEven) {
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = HalfToFloat(half);
    ASSERT_EQ(FloatToHalf(value), half) << bits;
    ASSERT_EQ(FloatToHalf(-value), half | 0x8000) << bits;
    if (bits + 1 == 0x7C00) break;
    const float next = HalfToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = value + (next - value) / 2;
    ASSERT_EQ(FloatToHalf(middle), bits + (bits & 1)) << bits;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0F)), bits) << bits;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, next)), bits + 1) << bits;
  }
  EXPECT_EQ(HalfToFloat(0x3C00), 1.0F);
  EXPECT_EQ(HalfToFloat(0x7BFF), 65504.0F);
  EXPECT_EQ(FloatToHalf(65519.0F), 0x7BFF);
  EXPECT_EQ(FloatToHalf(65520.0F), 0x7C00);
  EXPECT_EQ(HalfToFloat(0x0001), std::ldexp(1.0F, -24));
}

TEST(PointwiseTest, Bfloat16RoundsToTheNearestEven) {
  for (uint32_t bits = 0; bits < 0x7F7F; ++bits) {
    const float value = Bfloat16ToFloat(static_cast<uint16_t>(bits));
    const float middle = std::bit_cast<float>(bits << 16 | 0x8000);
    ASSERT_EQ(FloatToBfloat16(value), bits);
    ASSERT_EQ(FloatToBfloat16(middle), bits + (bits & 1));
    ASSERT_EQ(FloatToBfloat16(std::bit_cast<float>(bits << 16 | 0x7FFF)), bits);
    ASSERT_EQ(FloatToBfloat16(std::bit_cast<float>(bits << 16 | 0x8001)), bits + 1);
  }
}

}  // namespace
}  // namespace pinfeed
