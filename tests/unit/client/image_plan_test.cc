// SPDX-License-Identifier: Apache-2.0
// What the client checks of a plan before the GPU follows it, and where a file's pixels lie.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>

#include "client/src/decode/engine_pixels.h"
#include "client/src/decode/image_plan_check.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr uint32_t kHeight = 224;
constexpr uint32_t kWidth = 192;

// A crop of 300 x 200 pixels, resized to 250 x 260, of which the output is a part.
ImagePlan GoodPlan() {
  return {.kind = static_cast<uint32_t>(ImagePlanKind::kJpeg),
          .width = 500,
          .height = 375,
          .crop_x = 200,
          .crop_y = 175,
          .crop_width = 300,
          .crop_height = 200,
          .resized_width = 250,
          .resized_height = 260,
          .out_x = 58,
          .out_y = 36,
          .interpolation = static_cast<uint32_t>(PlanInterpolation::kLanczos),
          .flags = kPlanFlags};
}

JpegFrame GoodFrame() {
  return {.width = 500, .height = 375, .components = 3, .sequential = true};
}

Status CheckWith(const std::function<void(ImagePlan&)>& change) {
  ImagePlan plan = GoodPlan();
  change(plan);
  return CheckImagePlan(plan, kHeight, kWidth);
}

TEST(ImagePlanTest, TakesAPlanThatReachesEveryEdge) {
  EXPECT_OK(CheckImagePlan(GoodPlan(), kHeight, kWidth));
}

TEST(ImagePlanTest, RefusesKindsAndBitsThatItDoesNotKnow) {
  EXPECT_THAT(CheckWith([](ImagePlan& plan) { plan.kind = 3; }),
              StatusIs(Code::kDataLoss, HasSubstr("kind 3")));
  EXPECT_THAT(CheckWith([](ImagePlan& plan) { plan.flags |= 16; }), StatusIs(Code::kDataLoss));
  EXPECT_THAT(CheckWith([](ImagePlan& plan) { plan.reserved[2] = 1; }), StatusIs(Code::kDataLoss));
  EXPECT_THAT(CheckWith([](ImagePlan& plan) { plan.interpolation = 4; }), StatusIs(Code::kDataLoss));
}

TEST(ImagePlanTest, RefusesAPlanOfPixelsThatDescribesAFile) {
  for (const ImagePlanKind kind : {ImagePlanKind::kZero, ImagePlanKind::kPixels}) {
    const ImagePlan empty{.kind = static_cast<uint32_t>(kind)};
    EXPECT_OK(CheckImagePlan(empty, kHeight, kWidth));
    EXPECT_THAT(CheckWith([&](ImagePlan& plan) { plan.kind = empty.kind; }), StatusIs(Code::kDataLoss));
  }
}

TEST(ImagePlanTest, RefusesImagesLargerThanTheDecodersMemory) {
  EXPECT_THAT(CheckWith([](ImagePlan& plan) { plan.width = 65501; }), StatusIs(Code::kDataLoss));
  EXPECT_THAT(CheckWith([](ImagePlan& plan) { plan.width = plan.height = 4097; }),
              StatusIs(Code::kDataLoss, HasSubstr("4097 x 4097 pixels is not for the GPU")));
  EXPECT_OK(CheckWith([](ImagePlan& plan) { plan.width = plan.height = 4096; }));
}

// Every field by one too far, and by as much as overflows a sum.
TEST(ImagePlanTest, RefusesWhatLeavesTheImageOrTheResult) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
  const struct {
    int32_t ImagePlan::*field;
    std::vector<int32_t> values;
  } wrong[] = {{&ImagePlan::width, {499, 0, -1, kLeast}},
               {&ImagePlan::height, {374, 0, kLeast}},
               {&ImagePlan::crop_x, {201, -1, kMost, kLeast}},
               {&ImagePlan::crop_y, {176, -1, kMost, kLeast}},
               {&ImagePlan::crop_width, {301, 0, -1, kMost, kLeast}},
               {&ImagePlan::crop_height, {201, 0, -1, kMost, kLeast}},
               {&ImagePlan::resized_width, {249, 0, kLeast, kMost}},
               {&ImagePlan::resized_height, {259, 0, kLeast, kMost}},
               {&ImagePlan::out_x, {59, -1, kMost, kLeast}},
               {&ImagePlan::out_y, {37, -1, kMost, kLeast}}};
  for (const auto& fault : wrong) {
    for (const int32_t value : fault.values)
      EXPECT_THAT(CheckWith([&](ImagePlan& plan) { plan.*fault.field = value; }), StatusIs(Code::kDataLoss))
          << value;
  }
}

TEST(ImagePlanTest, RefusesAFileThatIsNotThePlans) {
  const auto check = [](const std::function<void(JpegFrame&)>& change) {
    JpegFrame frame = GoodFrame();
    change(frame);
    return CheckJpegFrame(GoodPlan(), frame);
  };
  EXPECT_OK(check([](JpegFrame&) {}));
  EXPECT_THAT(check([](JpegFrame& frame) { frame.height = 376; }),
              StatusIs(Code::kDataLoss, HasSubstr("500 x 376 pixels, its plan says 500 x 375")));
  EXPECT_THAT(check([](JpegFrame& frame) { frame.width = 0; }), StatusIs(Code::kDataLoss));
  EXPECT_THAT(check([](JpegFrame& frame) { frame.sequential = false; }), StatusIs(Code::kDataLoss));
  EXPECT_THAT(check([](JpegFrame& frame) { frame.components = 4; }), StatusIs(Code::kDataLoss));
  EXPECT_OK(check([](JpegFrame& frame) { frame.components = 1; }));
}

// Whole MCUs have their place, and the largest image fits into 64 MiB.
TEST(ImagePlanTest, PixelsHaveRoomForWholeBlocks) {
  std::minstd_rand random(1);
  uint64_t most = 0;
  for (int i = 0; i < 20000; ++i) {
    JpegFrame frame{.components = 3, .sequential = true};
    frame.width = 1 + random() % 65500;
    frame.height =
        1 + random() % static_cast<uint32_t>(std::min<int64_t>(65500, kMaxPlanPixels / frame.width));
    const EnginePixels pixels = PixelsOf(frame);
    ASSERT_EQ(pixels.pitch % 32, 0U);
    ASSERT_GE(pixels.pitch, 3 * ((frame.width + 15) / 16 * 16));
    ASSERT_EQ(pixels.bytes % 256, 0U);
    ASSERT_GE(pixels.bytes, uint64_t{pixels.pitch} * ((frame.height + 15) / 16 * 16));
    most = std::max(most, pixels.bytes);
  }
  EXPECT_LE(most, uint64_t{64} << 20);
  EXPECT_GT(most, uint64_t{32} << 20);  // it was tried
}

}  // namespace
}  // namespace pinfeed
