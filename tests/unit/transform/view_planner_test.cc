// SPDX-License-Identifier: Apache-2.0
#include "server/transform/view_planner.h"

#include <cstdint>
#include <vector>

#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"

namespace pinfeed {
namespace {

constexpr ImageSize kSize{23, 17};
constexpr uint64_t kSeed = 77;

std::vector<uint8_t> Noise() {
  std::vector<uint8_t> pixels(3 * size_t{kSize.width} * size_t{kSize.height} + kRowSlack);
  uint32_t state = 1;
  for (uint8_t& byte : pixels) byte = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  return pixels;
}

// What the workers make of the image.
std::vector<uint8_t> ByPlan(const TransformChain& chain, const std::vector<uint8_t>& pixels, uint64_t epoch,
                            uint64_t sample) {
  GeometryPlan plan;
  EXPECT_OK(chain.Plan({kSeed, epoch, sample}, kSize, plan));
  const ImageView whole{pixels.data(), kSize.width, kSize.height, 3 * size_t{kSize.width}};
  GeometryScratch scratch;
  const Result<ImageView> made = RunGeometry(plan, kSize, whole.Crop(SourceRegion(plan, kSize)), scratch);
  EXPECT_OK(made.status());
  std::vector<uint8_t> out;
  for (int32_t y = 0; y < made->height; ++y) {
    const uint8_t* const row = made->Row(plan.flip_vertical ? made->height - 1 - y : y);
    for (int32_t x = 0; x < made->width; ++x) {
      const uint8_t* const pixel = row + 3 * (plan.flip ? made->width - 1 - x : x);
      out.insert(out.end(), pixel, pixel + 3);
    }
  }
  return out;
}

std::vector<uint8_t> ByView(const SampleView& view, const std::vector<uint8_t>& pixels, uint64_t epoch,
                            uint64_t sample) {
  const ViewPlace place = PlaceOf(view, epoch, sample);
  std::vector<uint8_t> out;
  for (uint32_t y = 0; y < view.height; ++y) {
    for (uint32_t x = 0; x < view.width; ++x) {
      const uint32_t row = place.flip_vertical ? view.height - 1 - y : y;
      const uint32_t column = place.flip ? view.width - 1 - x : x;
      const auto mode = static_cast<BorderMode>(view.border);
      const int32_t from_y = PixelAt(place.y + static_cast<int32_t>(row), kSize.height, mode);
      const int32_t from_x = PixelAt(place.x + static_cast<int32_t>(column), kSize.width, mode);
      for (uint32_t c = 0; c < 3; ++c) {
        out.push_back(from_y < 0 || from_x < 0
                          ? static_cast<uint8_t>(view.fill[c])
                          : pixels[3 * static_cast<size_t>(from_y * kSize.width + from_x) + c]);
      }
    }
  }
  return out;
}

TransformSpec Bordered(TransformSpec spec, const std::string& mode) {
  spec.parameters["padding_mode"] = std::vector<std::string>{mode};
  return spec;
}

TEST(ViewPlannerTest, AViewHasThePixelsOfThePlan) {
  const std::vector<std::vector<TransformSpec>> chains = {
      {},
      {RandomHorizontalFlip{}},
      {RandomVerticalFlip{0.3}, RandomHorizontalFlip{0.7}, RandomVerticalFlip{}},
      {RandomCrop{17, 23}},
      {RandomCrop{9, 11}, RandomHorizontalFlip{}},
      {RandomHorizontalFlip{}, RandomCrop{17, 23, {4}}, RandomVerticalFlip{}},
      {RandomVerticalFlip{}, RandomCrop{13, 30, {2, 3, 9, 1}, false, {7, 8, 9}}},
      {RandomHorizontalFlip{1}, RandomCrop{40, 50, {3}, true, {5}}},
      {RandomHorizontalFlip{}, RandomVerticalFlip{}, CenterCrop{11, 40}, RandomHorizontalFlip{}},
      {RandomHorizontalFlip{}, Pad{{1, 2, 3, 4}, {3, 2, 1}}},
      {RandomHorizontalFlip{}, Pad{{19}, {0}, "reflect"}, RandomVerticalFlip{}},
      {RandomVerticalFlip{}, Bordered(RandomCrop{20, 20, {12}}, "symmetric")},
      {RandomHorizontalFlip{}, Bordered(RandomCrop{20, 20, {12}}, "edge"), Normalize{{0.5}, {0.2}}},
  };
  const std::vector<uint8_t> pixels = Noise();
  for (size_t i = 0; i < chains.size(); ++i) {
    const TransformChain chain = ChainOf(chains[i]);
    ASSERT_OK_AND_ASSIGN(const SampleView view, chain.View(kSeed, kSize, 0));
    for (uint64_t sample = 0; sample < 40; ++sample) {
      ASSERT_EQ(ByPlan(chain, pixels, sample / 20, sample), ByView(view, pixels, sample / 20, sample))
          << "chain " << i << ", sample " << sample;
    }
  }
}

TEST(ViewPlannerTest, TheFirstTransformThatAKernelCannotDoIsNamed) {
  const auto why = [](std::vector<TransformSpec> specs) {
    return ChainOf(std::move(specs)).View(kSeed, kSize, 0).status();
  };
  EXPECT_THAT(why({RandomHorizontalFlip{}, RandomResizedCrop{8, 8}}).message(),
              HasSubstr("transforms[1] random_resized_crop: "));
  EXPECT_THAT(why({RandomCrop{9, 9}, RandomCrop{8, 8}}).message(), HasSubstr("transforms[1] random_crop: "));
  EXPECT_THAT(why({RandomHorizontalFlip{}, Grayscale{3}}).message(), HasSubstr("transforms[1] grayscale: "));
  EXPECT_THAT(why({RandomHorizontalFlip{}, Resize{9, 9}}).message(), HasSubstr("transforms[1] resize: "));
  EXPECT_THAT(why(std::vector<TransformSpec>(kMaxViewSteps + 1, RandomHorizontalFlip{})).message(),
              HasSubstr("transforms[6] random_horizontal_flip: "));
}

TEST(ViewPlannerTest, TransformsBeforeTheFirstAreLeftOut) {
  const TransformChain chain = ChainOf({Resize{17, 23}, Grayscale{1}, RandomHorizontalFlip{}});
  ASSERT_OK_AND_ASSIGN(const SampleView view, chain.View(kSeed, kSize, chain.fixed()));
  ASSERT_EQ(view.step_count, 1U);
  EXPECT_EQ(view.steps[0].transform, 2U) << "draws depend on the place in the whole list";
}

}  // namespace
}  // namespace pinfeed
