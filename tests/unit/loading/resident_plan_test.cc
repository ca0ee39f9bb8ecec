// SPDX-License-Identifier: Apache-2.0
#include "server/loading/resident_plan.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

std::shared_ptr<const Dataset> WithFields(std::vector<Field> fields) {
  std::vector<std::vector<std::vector<std::byte>>> contents(3);
  for (auto& sample : contents) sample.resize(fields.size());
  return std::make_shared<MemoryDataset>(std::move(fields), std::move(contents));
}

Field Chw() {
  return TensorField("image", DType::kUint8, {3, 20, 30});
}

FeedSpec SpecOf(std::vector<TransformSpec> transforms) {
  return {.batch_size = 8, .seed = 5, .transforms = std::move(transforms)};
}

std::string WhyNot(const FeedSpec& spec, const Dataset& dataset) {
  const Result<ResidentPlan> plan = PlanResident(spec, dataset);
  EXPECT_EQ(plan.status().code(), Code::kFailedPrecondition);
  return plan.status().message();
}

TEST(ResidentPlanTest, RandomTransformsAreLeftToTheKernel) {
  const FeedSpec spec =
      SpecOf({CenterCrop{18, 18}, Normalize{{0.5}, {0.2}}, RandomHorizontalFlip{}, RandomCrop{16, 14, {2}}});
  // The list is not in an order that a feed accepts; the plan is of what it does.
  FeedSpec ordered = spec;
  std::swap(ordered.transforms[1], ordered.transforms[3]);
  const auto dataset = WithFields({TensorField("label", DType::kInt64, {}), Chw()});
  ASSERT_OK_AND_ASSIGN(const ResidentPlan plan, PlanResident(ordered, *dataset));
  EXPECT_THAT(plan.load.transforms, ElementsAre(ordered.transforms[0]));
  EXPECT_EQ(plan.load.batch_size, 3U);
  ASSERT_TRUE(plan.image);
  EXPECT_EQ(plan.image->tensor, 1U);
  EXPECT_EQ(plan.image->source_layout, ImageLayout::kHwc);
  EXPECT_EQ(plan.image->output.dtype, DType::kFloat32);
  EXPECT_THAT(plan.image->output.shape, ElementsAre(3, 16, 14));
  EXPECT_EQ(plan.view.source_height, 18U);
  EXPECT_EQ(plan.view.positions_x, 18U + 4 - 14 + 1);
  EXPECT_EQ(plan.view.step_count, 2U);
}

TEST(ResidentPlanTest, AnImageWithoutAHeadIsLoadedAsItIs) {
  const auto dataset = WithFields({Chw()});
  ASSERT_OK_AND_ASSIGN(
      const ResidentPlan plan,
      PlanResident(SpecOf({RandomHorizontalFlip{}, ToDtype{DType::kFloat16, true}}), *dataset));
  EXPECT_TRUE(plan.load.transforms.empty());
  EXPECT_EQ(plan.image->source_layout, ImageLayout::kChw);
  ASSERT_OK_AND_ASSIGN(const ResidentPlan none, PlanResident(SpecOf({}), *dataset));
  EXPECT_FALSE(none.image);
}

TEST(ResidentPlanTest, FeedsThatDifferInTheirBatchesShareALoad) {
  const auto dataset = WithFields({Chw()});
  FeedSpec one = SpecOf({RandomHorizontalFlip{}});
  FeedSpec other = SpecOf({RandomCrop{9, 9}, Normalize{{0.5}, {0.2}}});
  other.batch_size = 100;
  other.seed = 1;
  other.order = Order::kShuffle;
  other.image_layout = ImageLayout::kHwc;
  other.on_bad_sample = OnBadSample::kSkip;
  other.rank = 1;
  other.world_size = 4;
  EXPECT_EQ(PlanResident(one, *dataset)->load, PlanResident(other, *dataset)->load);
  other.valid = true;
  EXPECT_NE(PlanResident(one, *dataset)->load, PlanResident(other, *dataset)->load);
}

TEST(ResidentPlanTest, WhatCannotBeResidentIsNamed) {
  const auto arrays = WithFields({Chw()});
  EXPECT_THAT(WhyNot(SpecOf({RandomResizedCrop{8, 8}}), *arrays),
              HasSubstr("transforms[0] random_resized_crop"));
  const auto photos = WithFields({EncodedField("image")});
  EXPECT_THAT(WhyNot(SpecOf({RandomCrop{8, 8}}), *photos), HasSubstr("put Resize([h, w]) or CenterCrop"));
  ASSERT_OK(PlanResident(SpecOf({Resize{9, 9}, RandomCrop{8, 8}}), *photos));
  FeedSpec decodes = SpecOf({CenterCrop{8, 8}});
  decodes.decode = Decode::kAuto;
  EXPECT_THAT(WhyNot(decodes, *photos), HasSubstr("use the decode CPU"));
  FeedSpec masked = SpecOf({RandomHorizontalFlip{}});
  masked.masks = {"mask"};
  const auto with_mask = WithFields({Chw(), TensorField("mask", DType::kUint8, {20, 30})});
  EXPECT_THAT(WhyNot(masked, *with_mask), HasSubstr("masks are not resident"));
  Field text = TensorField("text", DType::kUint8, {90});
  text.kind = FieldKind::kRagged;
  const auto texts = WithFields({text});
  EXPECT_THAT(WhyNot(SpecOf({}), *texts), HasSubstr("field 'text' have different numbers of rows"));
  FeedSpec padded = SpecOf({});
  padded.pad = {{"text", 90}};
  ASSERT_OK(PlanResident(padded, *texts));
}

}  // namespace
}  // namespace pinfeed
