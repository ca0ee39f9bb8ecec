// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the kernel behind the JPEG engines (tests/support/decode_on_host.h) against the daemon's
// resampler. The daemon's decoder stands for the engines.
#include <algorithm>
#include <cstring>

#include "client/src/decode/engine_pixels.h"
#include "server/transform/gpu_plan.h"
#include "tests/support/decode_on_host.h"
#include "tests/support/planned_images.h"
#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

struct File {
  JpegFrame frame;
  EnginePixels layout;
  std::vector<uint8_t> pixels;
};

// The pixels as an engine writes them.
File Decode(const std::vector<std::byte>& file) {
  ImageDecoder decoder;
  const Result<ImageView> whole = DecodeImage(file, decoder);
  PF_CHECK(whole.ok(), whole.status().message());
  File decoded;
  decoded.frame = {.width = static_cast<uint32_t>(whole->width),
                   .height = static_cast<uint32_t>(whole->height),
                   .components = 3,
                   .sequential = true};
  decoded.layout = PixelsOf(decoded.frame);
  decoded.pixels.assign(decoded.layout.bytes, 0x5A);
  for (int32_t y = 0; y < whole->height; ++y)
    std::memcpy(&decoded.pixels[static_cast<size_t>(y) * decoded.layout.pitch], whole->Row(y),
                size_t{3} * decoded.frame.width);
  return decoded;
}

std::vector<uint8_t> RunKernel(const File& file, const ImagePlan& plan, int32_t height, int32_t width) {
  DecodeImages work{};
  work.height = static_cast<uint32_t>(height);
  work.width = static_cast<uint32_t>(width);
  work.channels = 3;
  std::vector<uint8_t> out(size_t{3} * work.height * work.width);
  DecodedImage image = Describe(plan, file.layout);
  image.pixels = file.pixels.data();
  image.out = out.data();
  MakeOnHost(work, image);
  return out;
}

class DecodeKernelTest : public ::testing::Test {
 protected:
  // Compares one sample of the chain. Where a sum is just between two levels, the rounding differs by one.
  void Compare(const std::vector<std::byte>& file, const std::vector<TransformSpec>& specs, uint64_t sample) {
    const File decoded = Decode(file);
    ASSERT_OK_AND_ASSIGN(const GeometryPlan plan, worker_.Plan(file, ChainOf(specs), sample));
    const std::optional<ImagePlan> planned = PlanForGpu(
        plan, {static_cast<int32_t>(decoded.frame.width), static_cast<int32_t>(decoded.frame.height)});
    ASSERT_TRUE(planned.has_value());
    const bool one_step = plan.steps.size() == 1;
    const int32_t height = one_step ? plan.steps.back().height : plan.steps.back().crop.height;
    const int32_t width = one_step ? plan.steps.back().width : plan.steps.back().crop.width;
    ASSERT_OK(CheckImagePlan(*planned, static_cast<uint32_t>(height), static_cast<uint32_t>(width)));
    ASSERT_OK(CheckJpegFrame(*planned, decoded.frame));
    ASSERT_OK_AND_ASSIGN(const std::vector<uint8_t> expected, worker_.Make(file, plan));
    const std::vector<uint8_t> made = RunKernel(decoded, *planned, height, width);
    ASSERT_EQ(made.size(), expected.size());
    int most = 0;
    size_t different = 0;
    for (size_t i = 0; i < made.size(); ++i) {
      most = std::max(most, std::abs(int{made[i]} - int{expected[i]}));
      different += made[i] != expected[i] ? 1 : 0;
    }
    EXPECT_LE(most, 1) << "sample " << sample;
    EXPECT_LE(different, made.size() / 20) << "sample " << sample;
    if (planned->resized_width == planned->crop_width && planned->resized_height == planned->crop_height) {
      EXPECT_EQ(different, 0U);
    }
  }

  WorkerPath worker_;
};

TEST_F(DecodeKernelTest, ACropKeepsThePixels) {
  uint32_t seed = 0;
  for (const int width : {1, 2, 4, 5, 6, 31, 64}) {
    for (const int height : {1, 2, 3, 17, 32}) {
      const auto file =
          MakeJpeg({.width = width, .height = height, .horizontal = 2, .vertical = height % 2 + 1}, ++seed);
      Compare(file, {CenterCrop{static_cast<uint32_t>(height), static_cast<uint32_t>(width)}}, 0);
      Compare(file,
              {CenterCrop{static_cast<uint32_t>((height + 1) / 2), static_cast<uint32_t>((width + 1) / 2)}},
              0);
    }
  }
}

TEST_F(DecodeKernelTest, CropsAndResizesAreTheDaemons) {
  const char* const interpolations[] = {"nearest", "bilinear", "bicubic", "lanczos"};
  uint32_t seed = 0;
  for (const char* const interpolation : interpolations) {
    for (const int side : {97, 150}) {
      const auto file =
          MakeJpeg({.width = side + 33, .height = side, .horizontal = 2, .vertical = side % 2 + 1}, ++seed);
      for (uint64_t sample = 0; sample < 4; ++sample) {
        Compare(file,
                {RandomVerticalFlip{}, RandomHorizontalFlip{},
                 Interpolated(RandomResizedCrop{40, 52}, {interpolation})},
                sample);
        Compare(file,
                {Interpolated(Resize{0, 48}, {interpolation}), CenterCrop{32, 40}, RandomVerticalFlip{}},
                sample);
        Compare(file, {Interpolated(Resize{181, 7}, {interpolation})}, sample);
      }
    }
  }
}

TEST_F(DecodeKernelTest, EnginesWriteAllThatThePlanReads) {
  constexpr int32_t kWidth = 101;
  constexpr int32_t kHeight = 67;
  for (int32_t x = 0; x < kWidth; x += 7) {
    for (int32_t y = 0; y < kHeight; y += 5) {
      for (const int32_t side : {1, 2, 16, kHeight - y}) {
        const ImagePlan plan{.width = kWidth,
                             .height = kHeight,
                             .crop_x = x,
                             .crop_y = y,
                             .crop_width = std::min(side, kWidth - x),
                             .crop_height = std::min(side, kHeight - y)};
        const ImageRegion region = EngineRegion(plan);
        if (x + plan.crop_width == kWidth || y + plan.crop_height == kHeight) {
          EXPECT_EQ((std::array{region.x, region.y, region.width, region.height}),
                    (std::array{0, 0, kWidth, kHeight}));
        }
        EXPECT_GE(region.x, 0);
        EXPECT_GE(region.y, 0);
        EXPECT_LE(region.x + region.width, kWidth);
        EXPECT_LE(region.y + region.height, kHeight);
        EXPECT_EQ(region.x % 16, 0);
        EXPECT_EQ(region.y % 16, 0);
        // With two pixels more where the image has them.
        EXPECT_LE(region.x, std::max(0, x - 2));
        EXPECT_LE(region.y, std::max(0, y - 2));
        EXPECT_GE(region.x + region.width, std::min(kWidth, x + plan.crop_width + 2));
        EXPECT_GE(region.y + region.height, std::min(kHeight, y + plan.crop_height + 2));
      }
    }
  }
}

TEST_F(DecodeKernelTest, GrayscaleComesBeforeTheResize) {
  const auto file = MakeJpeg({.width = 120, .height = 90}, 7);
  for (uint64_t sample = 0; sample < 3; ++sample)
    Compare(file, {CenterCrop{80, 80}, Grayscale{3}, Interpolated(Resize{33, 47}, {"bicubic"})}, sample);
}

// The daemon adds up the scale, and its sums round. So does the kernel: a pixel aside would be another one.
TEST_F(DecodeKernelTest, NearestRoundsLikeTheDaemon) {
  const auto file = MakeJpeg({.width = 500, .height = 300, .horizontal = 1, .vertical = 1}, 8);
  for (const uint32_t side : {150U, 90U, 333U}) {
    Compare(file, {Interpolated(Resize{side, side}, {"nearest"})}, 0);
    Compare(file,
            {RandomVerticalFlip{1}, RandomHorizontalFlip{1}, Interpolated(Resize{side, side}, {"nearest"})},
            0);
  }
}

}  // namespace
}  // namespace pinfeed
