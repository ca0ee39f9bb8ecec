// SPDX-License-Identifier: Apache-2.0
#include "server/transform/gpu_plan.h"

#include <vector>

#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"

namespace pinfeed {
namespace {

std::optional<ImagePlan> PlanOf(const std::vector<TransformSpec>& transforms, ImageSize size,
                                uint64_t sample = 0) {
  GeometryPlan plan;
  EXPECT_OK(ChainOf(transforms).Plan({1, 2, sample}, size, plan));
  return PlanForGpu(plan, size);
}

TEST(GpuPlanTest, CropResizeAndCropOfTheResult) {
  const std::optional<ImagePlan> plan = PlanOf({Resize{0, 256}, CenterCrop{224, 200}}, {500, 375});
  ASSERT_TRUE(plan);
  EXPECT_EQ(*plan, (ImagePlan{.kind = 1,
                              .width = 500,
                              .height = 375,
                              .crop_x = 0,
                              .crop_y = 0,
                              .crop_width = 500,
                              .crop_height = 375,
                              .resized_width = 341,
                              .resized_height = 256,
                              .out_x = 70,
                              .out_y = 16,
                              .interpolation = 1,
                              .flags = 0,
                              .reserved = {}}));
}

TEST(GpuPlanTest, CropOfACropIsOneCropWithoutResize) {
  const std::optional<ImagePlan> plan = PlanOf({CenterCrop{100, 120}, CenterCrop{50, 60}}, {200, 180});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->crop_x, 70);
  EXPECT_EQ(plan->crop_y, 65);
  EXPECT_EQ(plan->crop_width, 60);
  EXPECT_EQ(plan->resized_width, 60);
  EXPECT_EQ(plan->resized_height, 50);
  EXPECT_EQ(plan->out_x, 0);
}

TEST(GpuPlanTest, FlipsAndGrayscaleAreFlags) {
  const std::vector<TransformSpec> flips = {RandomHorizontalFlip{1}, RandomVerticalFlip{1},
                                            Interpolated(Resize{30, 40}, {"nearest"})};
  EXPECT_EQ(PlanOf(flips, {200, 180})->flags,
            kPlanFlipVertical | kPlanResizeMirrored | kPlanResizeUpsideDown);
  EXPECT_EQ(PlanOf(flips, {200, 180})->interpolation, 0U);
  EXPECT_EQ(PlanOf({Grayscale{3}, Resize{30, 40}}, {200, 180})->flags, kPlanGrayscale);
  EXPECT_EQ(PlanOf({Resize{30, 40}, Grayscale{1}}, {200, 180})->flags, kPlanGrayscale);
  EXPECT_EQ(PlanOf({Resize{30, 40}, RandomHorizontalFlip{1}}, {200, 180})->flags, 0U) << "it is in the mark";
}

TEST(GpuPlanTest, PaddingAndSecondResizesDoNotFit) {
  EXPECT_FALSE(PlanOf({Pad{{4}}, Resize{30, 40}}, {200, 180}));
  EXPECT_FALSE(PlanOf({Resize{30, 40}, Resize{20, 20}}, {200, 180}));
  EXPECT_FALSE(PlanOf({Resize{30, 40}, CenterCrop{10, 60}}, {200, 180})) << "it pads";
  EXPECT_FALSE(PlanOf({CenterCrop{300, 300}}, {200, 180}));
}

TEST(GpuPlanTest, TransformsThatNeverFitAreKnown) {
  EXPECT_TRUE(MayFitGpu(ChainOf({RandomResizedCrop{224, 224}, RandomHorizontalFlip{}})));
  EXPECT_TRUE(MayFitGpu(ChainOf({Resize{0, 256}, CenterCrop{224, 224}, Normalize{{0.5}, {0.5}}})));
  EXPECT_TRUE(MayFitGpu(ChainOf({RandomCrop{32, 32, {4}}}))) << "some crops touch no padding";
  EXPECT_FALSE(MayFitGpu(ChainOf({Pad{{4}}, Resize{224, 224}})));
  EXPECT_FALSE(MayFitGpu(ChainOf({Resize{256, 256}, RandomResizedCrop{224, 224}})));
  EXPECT_FALSE(MayFitGpu(ChainOf({Resize{100, 100}, CenterCrop{224, 224}})));
}

}  // namespace
}  // namespace pinfeed
