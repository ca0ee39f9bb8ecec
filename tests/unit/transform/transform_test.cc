// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <map>
#include <random>

#include "server/image/decode.h"
#include "server/transform/transform_chain.h"
#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

// What becomes of images, and the faults.
std::pair<ImageForm, std::vector<std::string>> FormOf(const std::vector<TransformSpec>& transforms,
                                                      std::optional<ImageSize> size, size_t channels = 3) {
  Faults faults;
  ImageForm form;
  if (size) form = {size->width, size->height};
  form.channels = channels;
  form = ChainOf(transforms).Follow(form, faults);
  return {form, LinesOf(faults)};
}

std::vector<std::string> FormFaults(const std::vector<TransformSpec>& transforms, size_t channels = 3) {
  return FormOf(transforms, std::nullopt, channels).second;
}

GeometryPlan Plan(const std::vector<TransformSpec>& transforms, ImageSize size, RandomKey key = {}) {
  GeometryPlan plan;
  const Status status = ChainOf(transforms).Plan(key, size, plan);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return plan;
}

// The size that torchvision's Resize(size, max_size=...) gives.
TEST(TransformTest, MaxSizeBoundsTheLongerSideAndKeepsTheAspect) {
  const auto resized = [](const Resize& op, ImageSize size) {
    const GeometryPlan plan = Plan({op}, size);
    return std::pair(plan.steps.back().width, plan.steps.back().height);
  };
  EXPECT_EQ(resized({0, 0, 128}, {200, 100}), std::pair(128, 64));
  EXPECT_EQ(resized({0, 0, 128}, {30, 40}), std::pair(96, 128));
  EXPECT_EQ(resized({0, 0, 128}, {5000, 3}), std::pair(128, 1));
  EXPECT_EQ(resized({0, 100, 150}, {50, 150}), std::pair(50, 150));
  EXPECT_EQ(resized({0, 100, 150}, {60, 50}), std::pair(120, 100));
}

TEST(TransformTest, NamesEveryTransformThatDoesNotFitTheImages) {
  EXPECT_THAT(FormFaults({Normalize{{0.5, 0.5}, {1}}}),
              ElementsAre("transforms[0] normalize: mean has 2 values; 1 or 3 (one a channel) can be used"));
  EXPECT_THAT(FormFaults({RandomHorizontalFlip{}, Normalize{{0, 0, 0}, {1, 1}}}, 1),
              ElementsAre("transforms[1] normalize: mean has 3 values; 1 (one a channel) can be used",
                          "transforms[1] normalize: std has 2 values; 1 (one a channel) can be used"));
  EXPECT_THAT(FormFaults({Normalize{{0, 0, 0}, {1}}, ToDtype{DType::kFloat16, false}}), IsEmpty());
}

TEST(TransformTest, OutcomeKnowsSizeAndType) {
  const auto outcome = [](const std::vector<TransformSpec>& transforms, std::optional<ImageSize> size) {
    const auto [form, faults] = FormOf(transforms, size);
    EXPECT_THAT(faults, IsEmpty());
    return form;
  };
  EXPECT_EQ(outcome({Resize{0, 256}}, std::nullopt).width, 0);
  EXPECT_EQ(outcome({Resize{0, 10}}, ImageSize{35, 20}).width, 17);  // int(10 * 35 / 20)
  EXPECT_EQ(outcome({Resize{0, 10}}, ImageSize{35, 20}).height, 10);
  EXPECT_EQ(outcome({Resize{0, 256}, CenterCrop{3, 4}}, std::nullopt).width, 4);
  EXPECT_EQ(outcome({}, ImageSize{35, 20}).height, 20);
  EXPECT_EQ(outcome({Normalize{{0}, {1}}}, ImageSize{1, 1}).dtype, DType::kFloat32);
  EXPECT_EQ(outcome({Normalize{{0}, {1}}, ToDtype{DType::kFloat16, false}}, ImageSize{1, 1}).dtype,
            DType::kFloat16);
  EXPECT_EQ(outcome({}, ImageSize{1, 1}).dtype, DType::kUint8);
  EXPECT_EQ(outcome({Grayscale{1}}, ImageSize{1, 1}).channels, 1U);
}

TEST(TransformTest, CropsAndOneResizeAreOneStep) {
  EXPECT_EQ(Plan({CenterCrop{50, 60}, Resize{20, 30}}, {100, 80}).steps,
            (std::vector<GeometryStep>{{{20, 15, 60, 50}, 30, 20}}));
  EXPECT_EQ(Plan({CenterCrop{50, 60}, CenterCrop{10, 10}}, {100, 80}).steps,
            (std::vector<GeometryStep>{{{45, 35, 10, 10}, 10, 10}}));
  EXPECT_EQ(Plan({Resize{80, 100}}, {100, 80}).steps,
            (std::vector<GeometryStep>{{{0, 0, 100, 80}, 100, 80}}));
  EXPECT_EQ(Plan({Resize{20, 30}, Resize{40, 50}}, {100, 80}).steps.size(), 2U);
}

TEST(TransformTest, CenterCropRoundsAndPadsAsTorchvision) {
  const auto start = [](int32_t image, uint32_t crop) {
    return Plan({CenterCrop{crop, crop}}, {image, image}).steps[0].crop.x;
  };
  EXPECT_EQ(start(10, 9), 0);  // round(0.5) = 0
  EXPECT_EQ(start(12, 9), 2);  // round(1.5) = 2
  EXPECT_EQ(start(14, 9), 2);  // round(2.5) = 2
  EXPECT_EQ(start(10, 10), 0);
  EXPECT_EQ(start(10, 13), -1);  // 3 // 2 before, the rest behind
}

TEST(TransformTest, FlipBeforeACropMirrorsTheCrop) {
  const GeometryPlan plan = Plan({RandomHorizontalFlip{1}, CenterCrop{4, 3}}, {10, 8});
  EXPECT_TRUE(plan.flip);
  EXPECT_EQ(plan.steps[0].crop.x, 10 - 4 - 3);  // round(3.5) = 4 of the mirrored image
  EXPECT_FALSE(Plan({RandomHorizontalFlip{1}, RandomHorizontalFlip{1}}, {10, 8}).flip);
  const GeometryPlan upside_down = Plan({RandomVerticalFlip{1}, CenterCrop{3, 4}}, {8, 10});
  EXPECT_TRUE(upside_down.flip_vertical);
  EXPECT_EQ(upside_down.steps[0].crop.y, 10 - 4 - 3);
  EXPECT_FALSE(Plan({RandomHorizontalFlip{0}}, {10, 8}).flip);
}

TEST(TransformTest, RandomFlipsAndCropsAreDistributedAsAsked) {
  constexpr uint64_t kSamples = 4000;
  const std::vector<TransformSpec> transforms = {RandomResizedCrop{8, 8, 0.25, 0.5, 0.5, 2.0},
                                                 RandomHorizontalFlip{0.25}};
  double area_sum = 0;
  double x_sum = 0;
  uint64_t flips = 0;
  std::array<int, 2> wider{};
  for (uint64_t sample = 0; sample < kSamples; ++sample) {
    const GeometryPlan plan = Plan(transforms, {640, 480}, {1, 2, sample});
    ASSERT_EQ(plan.steps.size(), 1U);
    const Box& crop = plan.steps[0].crop;
    ASSERT_GE(crop.x, 0);
    ASSERT_GE(crop.y, 0);
    ASSERT_LE(crop.x + crop.width, 640);
    ASSERT_LE(crop.y + crop.height, 480);
    const double area = static_cast<double>(crop.width) * crop.height / (640.0 * 480.0);
    const double ratio = static_cast<double>(crop.width) / crop.height;
    ASSERT_GT(area, 0.245);
    ASSERT_LT(area, 0.505);
    ASSERT_GT(ratio, 0.49);
    ASSERT_LT(ratio, 2.02);
    area_sum += area;
    if (crop.width < 640) x_sum += static_cast<double>(crop.x) / (640 - crop.width);
    flips += plan.flip ? 1 : 0;
    ++wider[ratio > 1 ? 1 : 0];
  }
  EXPECT_NEAR(area_sum / kSamples, 0.375, 0.02);
  EXPECT_NEAR(x_sum / kSamples, 0.5, 0.025);  // five standard deviations of a uniform number's mean are 0.023
  EXPECT_NEAR(static_cast<double>(flips) / kSamples, 0.25, 0.035);
  EXPECT_GT(wider[0], 1000);
  EXPECT_GT(wider[1], 1000);
}

TEST(TransformTest, ImpossibleRandomCropFallsBackToTheCentre) {
  const auto crop = [](ImageSize size) {
    return Plan({RandomResizedCrop{8, 8, 1, 1, 0.75, 4.0 / 3}}, size).steps[0].crop;
  };
  EXPECT_EQ(crop({1000, 10}), (Box{(1000 - 13) / 2, 0, 13, 10}));  // round(10 * 4 / 3) = 13
  EXPECT_EQ(crop({10, 1000}), (Box{0, (1000 - 13) / 2, 10, 13}));  // round(10 / 0.75) = 13
  const Box flat = Plan({RandomResizedCrop{8, 8, 1, 1, 300, 400}}, {1, 50}).steps[0].crop;
  EXPECT_EQ(flat.height, 1);  // never empty
}

TEST(TransformTest, InterpolationIsDrawnSampleBySample) {
  std::map<Interpolation, int> drawn;
  for (uint64_t sample = 0; sample < 1000; ++sample) {
    const GeometryPlan plan =
        Plan({Interpolated(Resize{5, 5}, {"bilinear", "bicubic"})}, {9, 9}, {1, 2, sample});
    ++drawn[plan.steps[0].resampling.interpolation];
  }
  EXPECT_EQ(drawn.size(), 2U);
  EXPECT_NEAR(drawn[Interpolation::kBicubic], 500, 80);
  // A choice of one draws nothing: the crop is the one of the default.
  EXPECT_EQ(Plan({Interpolated(RandomResizedCrop{5, 5}, {"bicubic", "lanczos"})}, {90, 80}).steps[0].crop,
            Plan({RandomResizedCrop{5, 5}}, {90, 80}).steps[0].crop);
}

TEST(TransformTest, RandomCropIsAnywhereInThePaddedImageWithTheSameProbability) {
  constexpr int kSamples = 4500;
  std::array<int, 9> places{};
  for (uint64_t sample = 0; sample < kSamples; ++sample) {
    const GeometryPlan plan = Plan({RandomCrop{4, 6, {1}}}, {6, 4}, {1, 2, sample});
    ASSERT_EQ(plan.steps.size(), 1U);
    const Box& crop = plan.steps[0].crop;
    ASSERT_EQ(crop, (Box{crop.x, crop.y, 6, 4}));
    ++places.at(static_cast<size_t>(3 * (crop.y + 1) + crop.x + 1));
  }
  for (const int count : places) EXPECT_NEAR(count, kSamples / 9, 110);  // five standard deviations are 105
}

TEST(TransformTest, RandomCropOfASmallerImage) {
  GeometryPlan plan;
  EXPECT_THAT(
      ChainOf({RandomCrop{40, 50, {2}}}).Plan({}, {45, 100}, plan),
      StatusIs(Code::kInvalidArgument, HasSubstr("random_crop: an image of 45 x 100 pixels is smaller than "
                                                 "the crop of 50 x 40; use pad_if_needed")));
  EXPECT_THAT(FormOf({RandomCrop{40, 50}}, ImageSize{45, 100}).second,
              ElementsAre(HasSubstr("transforms[0] random_crop: an image of 45 x 100")));
  const Box crop = Plan({RandomCrop{40, 50, {2}, true}}, {10, 100}).steps[0].crop;
  EXPECT_EQ(crop.width, 50);
  EXPECT_GE(crop.x, -38);  // 2 and what is then missing, 36, on each side
  EXPECT_LE(crop.x, -2);
}

TEST(TransformTest, PaddingIsCheckedAgainstTheImages) {
  EXPECT_THAT(
      FormOf({Pad{{1}, {1, 2, 3}}}, std::nullopt, 1).second,
      ElementsAre("transforms[0] pad: fill has 3 values, but the images have one channel; give one value"));
  EXPECT_THAT(FormOf({Pad{{9000}}}, ImageSize{1, 1}).second, ElementsAre(HasSubstr("18001 x 18001")));
  const ImageForm form = FormOf({Pad{{1, 2, 3, 4}}}, ImageSize{10, 20}).first;
  EXPECT_EQ(std::pair(form.width, form.height), std::pair(14, 26));
}

TEST(TransformTest, ResizeBeyondTheLimitIsAnError) {
  GeometryPlan plan;
  const std::vector<TransformSpec> transforms = {Resize{0, 60000}};
  EXPECT_THAT(ChainOf(transforms).Plan({}, {10, 10}, plan),
              StatusIs(Code::kResourceExhausted, HasSubstr("60000")));
}

TEST(TransformTest, StepsBeyondTheLimitTogetherAreAnError) {
  const std::vector<TransformSpec> twice = {Resize{4096, 65500}, Resize{65500, 4096}, Resize{1, 1}};
  Plan(twice, {16, 16});
  std::vector<TransformSpec> often = twice;
  often.insert(often.end(), twice.begin(), twice.end());
  GeometryPlan plan;
  EXPECT_THAT(ChainOf(often).Plan({}, {16, 16}, plan),
              StatusIs(Code::kResourceExhausted, HasSubstr("all steps together")));
}

// Steps run one by one on the whole image, without any fusion, must give the same pixels.
TEST(TransformTest, FusedStepsEqualStepsOneByOne) {
  const std::vector<std::byte> file = MakeJpeg({.width = 150, .height = 110}, 9);
  ImageDecoder decoder;
  ASSERT_OK_AND_ASSIGN(const ImageView image, DecodeImage(file, decoder));
  std::minstd_rand random(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<TransformSpec> transforms;
    for (uint32_t i = 0; i < 1 + random() % 4; ++i) {
      const uint32_t height = 1 + random() % 200;
      const uint32_t width = 1 + random() % 200;
      switch (random() % 7) {
        case 0:
          transforms.push_back(
              Interpolated(Resize{height, width}, {random() % 2 == 0 ? "nearest" : "bicubic"}));
          break;
        case 1:
          transforms.push_back(Interpolated(RandomResizedCrop{height, width, 0.1, 1, 0.5, 2},
                                            {"nearest", "bilinear", "bicubic", "lanczos"}));
          break;
        case 2:
          transforms.emplace_back(Grayscale{3});
          break;
        case 3:
          transforms.emplace_back(RandomCrop{height, width, {double(width % 7)}, true});
          break;
        case 4: {
          const char* const modes[] = {"constant", "constant", "edge", "reflect", "symmetric"};
          const size_t mode = random() % 5;
          transforms.emplace_back(Pad{{double(height % 11), double(width % 5), 0, double(width % 9)},
                                      {mode == 0 ? 7.0 : 0, 0, 0},
                                      modes[mode]});
          break;
        }
        default:
          transforms.emplace_back(CenterCrop{height, width});
      }
    }
    const RandomKey key{1, 2, static_cast<uint64_t>(round)};
    const ImageSize size{image.width, image.height};
    GeometryPlan plan;
    ASSERT_OK(ChainOf(transforms).Plan(key, size, plan));
    GeometryScratch scratch;
    ASSERT_OK_AND_ASSIGN(const ImageView fused,
                         RunGeometry(plan, size, image.Crop(SourceRegion(plan, size)), scratch));

    std::vector<uint8_t> pixels = Pixels(image);
    ImageSize now = size;
    for (uint32_t i = 0; i < transforms.size(); ++i) {
      // Alone, but with its own index: transforms that change nothing stand before it.
      std::vector<TransformSpec> one(i, TransformSpec(ToDtype{}));
      one.push_back(transforms[i]);
      pixels.resize(pixels.size() + kRowSlack);
      const ImageView whole{pixels.data(), now.width, now.height, 3 * static_cast<size_t>(now.width)};
      GeometryPlan single;
      ASSERT_OK(ChainOf(one).Plan(key, now, single));
      GeometryScratch other;
      ASSERT_OK_AND_ASSIGN(const ImageView next,
                           RunGeometry(single, now, whole.Crop(SourceRegion(single, now)), other));
      now = {next.width, next.height};
      pixels = Pixels(next);
    }
    ASSERT_EQ(Pixels(fused), pixels) << round;
  }
}

}  // namespace
}  // namespace pinfeed
