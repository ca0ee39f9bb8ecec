// SPDX-License-Identifier: Apache-2.0
// What a resize takes; image_golden_test.cc has what it makes.
#include "server/image/resize.h"

#include <random>
#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

// Resizes black pixels.
Status Resized(int32_t in_width, int32_t in_height, int32_t width, int32_t height, ResizeScratch& scratch,
               Interpolation interpolation = Interpolation::kLanczos) {
  const auto bytes = [](int32_t w, int32_t h) {
    return 3 * static_cast<size_t>(w) * static_cast<size_t>(h) + kRowSlack;
  };
  const std::vector<uint8_t> source(bytes(in_width, in_height));
  std::vector<uint8_t> out(bytes(width, height));
  return ResizeImage({source.data(), in_width, in_height, 3 * static_cast<size_t>(in_width)}, width, height,
                     {interpolation}, {0, 0, width, height}, scratch, out.data());
}

TEST(ResizeTest, SidesOverTheLimitAreNamed) {
  ResizeScratch scratch;
  EXPECT_THAT(
      Resized(kMaxResizeSide + 1, 1, 2, 1, scratch),
      StatusIs(Code::kResourceExhausted,
               "resize of a width of 4194305 pixels to 2 is over the limit of 4194304 pixels a side"));
  EXPECT_THAT(Resized(1, 2, 1, kMaxResizeSide + 1, scratch),
              StatusIs(Code::kResourceExhausted, HasSubstr("a height of 2 pixels to 4194305 is over")));
  EXPECT_EQ(scratch.x.weight.capacity(), 0U);
}

TEST(ResizeTest, WeightsAreAsManyAsTheSidesAllow) {
  ResizeScratch scratch;
  std::minstd_rand random(1);
  const auto side = [&] { return static_cast<int32_t>(1 + random() % (random() % 2 == 0 ? 5 : 3000)); };
  for (int i = 0; i < 200; ++i) {
    const int32_t in = side();
    const int32_t out = side();
    ASSERT_OK(Resized(in, 1, out, 1, scratch));
    EXPECT_LE(scratch.x.weight.size(), static_cast<size_t>(6 * in + 10 * out)) << in << " to " << out;
    EXPECT_LE(scratch.x.taps, 6 * in / out + 10) << in << " to " << out;
  }
}

TEST(ResizeTest, TrimGivesBackTheWeightsOfALongSideOnly) {
  constexpr size_t kKept = size_t{1} << 20;
  ResizeScratch scratch;
  ASSERT_OK(Resized(500, 375, 224, 224, scratch));
  scratch.Trim(kKept);
  EXPECT_GT(scratch.x.weight.capacity(), 0U);
  EXPECT_GT(scratch.rows.capacity(), 0U);
  ASSERT_OK(Resized(1, 100000, 1, 2, scratch));
  scratch.Trim(kKept);
  EXPECT_EQ(scratch.y.weight.capacity(), 0U);
  EXPECT_EQ(scratch.y.high.capacity(), 0U);
  EXPECT_EQ(scratch.weights.capacity(), 0U);
  EXPECT_EQ(scratch.rows.capacity(), 0U);
  ASSERT_OK(Resized(500, 375, 224, 224, scratch));
}

}  // namespace
}  // namespace pinfeed
