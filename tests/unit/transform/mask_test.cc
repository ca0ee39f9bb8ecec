// SPDX-License-Identifier: Apache-2.0
// Fields beside the image: which of them follow its geometry, which stay, which are refused.
#include "server/transform/mask.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/loading/sample_loader.h"
#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

constexpr int32_t kHeight = 6;
constexpr int32_t kWidth = 9;

std::vector<std::byte> Counting(size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 251 + 1);
  return out;
}

size_t BytesOf(const Field& field) {
  return field.spec.SampleBytes().value();
}

Field ImageField() {
  return TensorField("image", DType::kUint8, {kHeight, kWidth, 3});
}

// `samples` samples of the image and the other fields, each filled with counting bytes.
std::shared_ptr<const Dataset> Samples(std::vector<Field> others, uint64_t samples = 1) {
  others.insert(others.begin(), ImageField());
  std::vector<std::vector<std::byte>> sample;
  for (const Field& field : others) sample.push_back(Counting(BytesOf(field)));
  return std::make_shared<MemoryDataset>(std::move(others),
                                         std::vector<std::vector<std::vector<std::byte>>>(samples, sample));
}

FeedSpec SpecOf(std::vector<TransformSpec> transforms, std::vector<std::string> masks = {},
                std::vector<std::string> unchanged = {}) {
  return {.seed = 11,
          .transforms = std::move(transforms),
          .masks = std::move(masks),
          .fields_unchanged = std::move(unchanged)};
}

std::vector<std::vector<std::byte>> LoadOne(const SampleLoader& loader, const SampleKey& key,
                                            SampleScratch& scratch) {
  std::vector<std::vector<std::byte>> tensors;
  std::vector<std::span<std::byte>> places;
  for (const TensorSpec& spec : loader.outputs())
    tensors.emplace_back(spec.SampleBytes().value(), std::byte{0xA5});
  for (auto& tensor : tensors) places.emplace_back(tensor);
  SampleTimes times;
  EXPECT_OK(loader.Load(key, places, scratch, times));
  return tensors;
}

// One transform on a mask of one plane, literally.
std::vector<std::byte> Literal(const TransformSpec& transform, uint32_t index, const RandomKey& key,
                               size_t pixel_bytes, ImageSize* size, const std::vector<std::byte>& mask) {
  std::vector<TransformSpec> alone(index, TransformSpec(ToDtype{}));  // the index is part of the random key
  alone.push_back(transform);
  GeometryPlan plan;
  EXPECT_OK(ChainOf(alone).Plan(key, *size, plan));
  EXPECT_EQ(plan.steps.size(), 1U);
  const GeometryStep& step = plan.steps.front();
  const auto nearest = [](int32_t at, int32_t from, int32_t to) {
    const float scale = static_cast<float>(from) / static_cast<float>(to);
    return from == to ? at : std::min(static_cast<int32_t>(static_cast<float>(at) * scale), from - 1);
  };
  std::vector<std::byte> out;
  for (int32_t y = 0; y < step.height; ++y) {
    for (int32_t x = 0; x < step.width; ++x) {
      const int32_t column = plan.flip ? step.width - 1 - x : x;
      const int32_t from_x = step.crop.x + nearest(column, step.crop.width, step.width);
      const int32_t row = plan.flip_vertical ? step.height - 1 - y : y;
      const int32_t from_y = step.crop.y + nearest(row, step.crop.height, step.height);
      const bool inside = from_x >= 0 && from_y >= 0 && from_x < size->width && from_y < size->height;
      for (size_t b = 0; b < pixel_bytes; ++b) {
        const size_t at =
            inside ? static_cast<size_t>(from_y * size->width + from_x) * pixel_bytes + b : mask.size();
        out.push_back(inside ? mask[at] : std::byte{0});
      }
    }
  }
  *size = {step.width, step.height};
  return out;
}

TEST(MaskTest, FollowsEveryChainOfTransformsStepByStep) {
  std::minstd_rand random(3);
  size_t flipped = 0;
  for (uint64_t round = 0; round < 400; ++round) {
    std::vector<TransformSpec> transforms;
    for (uint32_t i = 0; i < 1 + random() % 5; ++i) {
      const uint32_t height = 1 + random() % 14;
      const uint32_t width = 1 + random() % 14;
      switch (random() % 5) {
        case 0:
          transforms.emplace_back(Resize{height, width});
          break;
        case 1:
          transforms.emplace_back(RandomResizedCrop{height, width, 0.1, 1, 0.5, 2});
          break;
        case 2:
          transforms.emplace_back(RandomHorizontalFlip{});
          break;
        case 3:
          transforms.emplace_back(RandomVerticalFlip{});
          break;
        default:
          transforms.emplace_back(CenterCrop{height, width});
      }
    }
    const RandomKey key{1, 2, round};
    const ImageSize size{kWidth, kHeight};
    GeometryPlan plan;
    ASSERT_OK(ChainOf(transforms).Plan(key, size, plan));
    flipped += plan.flip ? 1 : 0;
    for (const size_t pixel_bytes : {1U, 2U, 3U, 4U, 8U, 16U}) {
      const std::vector<std::byte> source = Counting(size_t{kHeight} * kWidth * pixel_bytes);
      std::vector<std::byte> expected = source;
      ImageSize now = size;
      for (uint32_t i = 0; i < transforms.size(); ++i)
        expected = Literal(transforms[i], i, key, pixel_bytes, &now, expected);
      std::vector<std::byte> out(expected.size(), std::byte{0xA5});
      MaskScratch scratch;
      TransformMask({0, 0, 1, pixel_bytes}, plan, size, source, out, scratch);
      ASSERT_EQ(out, expected) << "round " << round << ", pixels of " << pixel_bytes;
    }
  }
  EXPECT_GT(flipped, 50U);
}

// Crops and flips move whole pixels: the image itself tells where each came from.
TEST(MaskTest, StaysAlignedWithItsImageInEveryLayout) {
  const std::vector<Field> masks = {TensorField("hw", DType::kUint8, {kHeight, kWidth}),
                                    TensorField("one_hw", DType::kInt8, {1, kHeight, kWidth}),
                                    TensorField("hw_one", DType::kBool, {kHeight, kWidth, 1}),
                                    TensorField("wide", DType::kInt64, {kHeight, kWidth}),
                                    TensorField("hwc", DType::kFloat16, {kHeight, kWidth, 5}),
                                    TensorField("chw", DType::kFloat32, {4, kHeight, kWidth}),
                                    TensorField("khwab", DType::kUint16, {2, kHeight, kWidth, 2, 2})};
  std::vector<std::string> names;
  for (const Field& field : masks) names.push_back(field.spec.name);
  const auto dataset = Samples(masks, 40);
  const FeedSpec spec =
      SpecOf({CenterCrop{4, 12}, RandomHorizontalFlip{}, CenterCrop{5, 7}, Normalize{{0.5}, {0.5}}}, names);
  ASSERT_OK_AND_ASSIGN(const auto loader, SampleLoader::Create(dataset, spec));
  const auto& outputs = loader->outputs();
  EXPECT_EQ(outputs[0], (TensorSpec{"image", DType::kFloat32, {3, 5, 7}}));
  EXPECT_EQ(outputs[1], (TensorSpec{"hw", DType::kUint8, {5, 7}}));
  EXPECT_EQ(outputs[2], (TensorSpec{"one_hw", DType::kInt8, {1, 5, 7}}));
  EXPECT_EQ(outputs[3], (TensorSpec{"hw_one", DType::kBool, {5, 7, 1}}));
  EXPECT_EQ(outputs[4], (TensorSpec{"wide", DType::kInt64, {5, 7}}));
  EXPECT_EQ(outputs[5], (TensorSpec{"hwc", DType::kFloat16, {5, 7, 5}}));
  EXPECT_EQ(outputs[6], (TensorSpec{"chw", DType::kFloat32, {4, 5, 7}}));
  EXPECT_EQ(outputs[7], (TensorSpec{"khwab", DType::kUint16, {2, 5, 7, 2, 2}}));
  SampleScratch scratch;
  std::vector<int> mirrored(2);
  for (uint64_t id = 0; id < 40; ++id) {
    const auto tensors = LoadOne(*loader, {id, 3}, scratch);
    GeometryPlan plan;
    ASSERT_OK(ChainOf(spec.transforms).Plan({spec.seed, 3, id}, {kWidth, kHeight}, plan));
    ++mirrored[plan.flip ? 1 : 0];
    for (size_t f = 1; f < tensors.size(); ++f) {
      const Field& field = dataset->info().fields[f];
      const std::vector<std::byte> source = Counting(BytesOf(field));
      const size_t planes = f == 6 ? 4 : f == 7 ? 2 : 1;
      const size_t pixel_bytes = source.size() / planes / (kHeight * kWidth);
      std::vector<std::byte> expected;
      for (size_t p = 0; p < planes; ++p) {
        const auto begin = source.begin() + static_cast<ptrdiff_t>(p * kHeight * kWidth * pixel_bytes);
        std::vector<std::byte> plane(begin, begin + static_cast<ptrdiff_t>(kHeight * kWidth * pixel_bytes));
        ImageSize now{kWidth, kHeight};
        for (uint32_t i = 0; i < 3; ++i)
          plane = Literal(spec.transforms[i], i, {spec.seed, 3, id}, pixel_bytes, &now, plane);
        expected.insert(expected.end(), plane.begin(), plane.end());
      }
      EXPECT_EQ(tensors[f], expected) << field.spec.name << " of sample " << id;
    }
  }
  EXPECT_GT(mirrored[0], 5);
  EXPECT_GT(mirrored[1], 5);
}

// Against the image of the same feed, which other code moves. On the trainer's GPU the image is mirrored
// later, as its mark says; the mask lies in the slot as it is to be.
TEST(MaskTest, MovesWithTheImageOnTheWorkerAndOnTheGpu) {
  const std::vector<std::byte> pixels = Counting(kHeight * kWidth);
  std::vector<std::byte> image;
  for (const std::byte pixel : pixels) image.insert(image.end(), 3, pixel);
  const auto dataset = std::make_shared<MemoryDataset>(
      std::vector<Field>{ImageField(), TensorField("mask", DType::kUint8, {kHeight, kWidth})},
      std::vector<std::vector<std::vector<std::byte>>>(60, {image, pixels}));
  for (const std::vector<TransformSpec>& transforms :
       {std::vector<TransformSpec>{RandomHorizontalFlip{}},
        std::vector<TransformSpec>{CenterCrop{4, 5}, RandomHorizontalFlip{}, CenterCrop{9, 4}}}) {
    FeedSpec spec = SpecOf(transforms, {"mask"});
    spec.image_layout = ImageLayout::kHwc;
    ASSERT_OK_AND_ASSIGN(const auto worker, SampleLoader::Create(dataset, spec));
    ASSERT_OK_AND_ASSIGN(const auto client, SampleLoader::Create(dataset, spec, PixelOpsAt::kClient));
    SampleScratch scratch;
    std::vector<int> mirrored(2);
    for (uint64_t id = 0; id < 60; ++id) {
      const auto at_worker = LoadOne(*worker, {id, 0}, scratch);
      const auto at_client = LoadOne(*client, {id, 0}, scratch);
      std::vector<std::byte> first;
      for (size_t i = 0; i < at_worker[0].size(); i += 3) first.push_back(at_worker[0][i]);
      EXPECT_EQ(at_worker[1], first);
      EXPECT_EQ(at_client[1], first);
      ASSERT_EQ(at_client.size(), 3U);
      ++mirrored[static_cast<size_t>(at_client[2].front())];
    }
    EXPECT_GT(mirrored[0], 10);
    EXPECT_GT(mirrored[1], 10);
  }
}

TEST(MaskTest, FieldsNamedUnchangedStayAsTheyAre) {
  const Field depth = TensorField("depth", DType::kFloat32, {kHeight, kWidth});
  const auto dataset = Samples({depth, TensorField("label", DType::kInt64, {})}, 20);
  ASSERT_OK_AND_ASSIGN(
      const auto loader,
      SampleLoader::Create(dataset, SpecOf({Resize{3, 3}, RandomHorizontalFlip{}}, {}, {"depth", "label"})));
  EXPECT_EQ(loader->outputs()[1], depth.spec);
  SampleScratch scratch;
  for (uint64_t id = 0; id < 20; ++id)
    EXPECT_EQ(LoadOne(*loader, {id, 0}, scratch)[1], Counting(BytesOf(depth)));
}

TEST(MaskTest, StaysAsItIsWithoutATransformThatMovesPixels) {
  const Field mask = TensorField("mask", DType::kInt16, {kHeight, kWidth});
  const Field other = TensorField("other", DType::kInt16, {kHeight, kWidth});
  SampleScratch scratch;
  for (const std::vector<TransformSpec>& transforms :
       {std::vector<TransformSpec>{}, std::vector<TransformSpec>{Normalize{{0.5}, {0.5}}},
        std::vector<TransformSpec>{RandomHorizontalFlip{0}, ToDtype{DType::kFloat32, true}}}) {
    ASSERT_OK_AND_ASSIGN(const auto loader,
                         SampleLoader::Create(Samples({mask, other}), SpecOf(transforms, {"mask"})));
    EXPECT_EQ(LoadOne(*loader, {0, 0}, scratch)[1], Counting(BytesOf(mask)));
    EXPECT_EQ(LoadOne(*loader, {0, 0}, scratch)[2], Counting(BytesOf(other)));
  }
}

TEST(MaskTest, FieldThatCouldBeAMaskIsRefusedUnlessItIsNamed) {
  const std::vector<std::vector<int64_t>> shapes = {{kHeight, kWidth},    {1, kHeight, kWidth},
                                                    {kHeight, kWidth, 1}, {7, kHeight, kWidth},
                                                    {kHeight, kWidth, 2}, {2, 3, kHeight, kWidth}};
  const std::vector<TransformSpec> moving[] = {{RandomHorizontalFlip{0.01}},
                                               {CenterCrop{4, 4}},
                                               {Resize{4, 4}},
                                               {Resize{0, 4}},
                                               {RandomResizedCrop{4, 4}},
                                               {Normalize{{0.5}, {0.5}}, RandomHorizontalFlip{}}};
  for (const auto& shape : shapes) {
    for (const DType dtype : {DType::kBool, DType::kUint8, DType::kInt64, DType::kFloat32}) {
      const auto dataset = Samples({TensorField("depth", dtype, shape)});
      for (const auto& transforms : moving) {
        EXPECT_THAT(SampleLoader::Create(dataset, SpecOf(transforms)),
                    StatusIs(Code::kInvalidArgument,
                             AllOf(HasSubstr("field 'depth' of shape ["), HasSubstr("name it in masks"),
                                   HasSubstr("or in fields_unchanged"))));
        EXPECT_OK(SampleLoader::Create(dataset, SpecOf(transforms, {"depth"})));
        EXPECT_OK(SampleLoader::Create(dataset, SpecOf(transforms, {}, {"depth"})));
      }
      EXPECT_OK(SampleLoader::Create(dataset, SpecOf({Normalize{{0.5}, {0.5}}})));
    }
  }
  EXPECT_THAT(
      SampleLoader::Create(Samples({TensorField("mask", DType::kUint8, {kHeight, kWidth})}),
                           SpecOf({Normalize{{0.5}, {0.5}}, RandomHorizontalFlip{}})),
      StatusIs(
          Code::kInvalidArgument,
          "transforms[1] random_horizontal_flip: field 'mask' of shape [6, 9] has the height and width of "
          "the image 'image', but would not follow it: name it in masks (it gets the same geometry, by "
          "nearest resampling), or in fields_unchanged to keep it as it is"));
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{}, {kHeight}, {kWidth, kHeight}, {kHeight, 1, kWidth}})
    EXPECT_OK(
        SampleLoader::Create(Samples({TensorField("label", DType::kInt64, shape)}), SpecOf({Resize{4, 4}})));
}

TEST(MaskTest, ColouredPaddingIsRefused) {
  const Field mask = TensorField("mask", DType::kUint8, {kHeight, kWidth});
  EXPECT_OK(SampleLoader::Create(Samples({mask}), SpecOf({Pad{{1}, {3}}}, {}, {"mask"})));
  EXPECT_THAT(
      SampleLoader::Create(Samples({mask}), SpecOf({Normalize{{0.5}, {0.5}}, Pad{{1}, {3}}}, {"mask"})),
      StatusIs(Code::kInvalidArgument, HasSubstr("move it before them")));
  EXPECT_THAT(SampleLoader::Create(Samples({mask}), SpecOf({CenterCrop{4, 4}, Pad{{1}, {3}}}, {"mask"})),
              StatusIs(Code::kInvalidArgument,
                       "transforms[1] pad: fill must be 0 when there are masks, to which zeros are added"));
}

TEST(MaskTest, NamesThatDoNotFitAreRefused) {
  const auto faults = [](const std::vector<Field>& fields, const FeedSpec& spec) {
    Faults found;
    AssignFieldRoles(fields, spec, ChainOf(spec.transforms), found);
    return LinesOf(found);
  };
  const Field mask = TensorField("mask", DType::kUint8, {kHeight, kWidth});
  const Field label = TensorField("label", DType::kInt64, {});
  const std::vector<TransformSpec> flip = {RandomHorizontalFlip{}};
  EXPECT_THAT(
      faults({ImageField(), mask}, SpecOf(flip, {"maks", "mask", "sample_id"}, {"x"})),
      ElementsAre("masks: the dataset has no field 'maks', 'sample_id'; its fields are 'image', 'mask'",
                  "fields_unchanged: the dataset has no field 'x'; its fields are 'image', 'mask'"));
  // Also where nothing moves.
  EXPECT_THAT(faults({mask}, SpecOf({}, {"maks"})), ElementsAre(HasSubstr("has no field 'maks'")));
  EXPECT_THAT(
      faults({ImageField(), label}, SpecOf(flip, {"label"})),
      ElementsAre(
          "masks: field 'label' of shape [] does not fit the image 'image': it needs the image's height "
          "and width, 6 and 9, as neighbouring dimensions"));
  EXPECT_THAT(
      faults({TensorField("image", DType::kUint8, {3, 8, 8}), TensorField("m", DType::kInt8, {8, 8, 8})},
             SpecOf(flip, {"m"})),
      ElementsAre(AllOf(HasSubstr("'m' of shape [8, 8, 8]"), HasSubstr("in more than one place"))));
  EXPECT_THAT(
      faults({EncodedField("image"), mask}, SpecOf({Resize{4, 4}}, {"mask"})),
      ElementsAre(HasSubstr("masks: field 'mask' of shape [6, 9] cannot follow images whose sizes vary")));
  EXPECT_THAT(faults({EncodedField("image"), mask}, SpecOf({Resize{4, 4}}, {"image"})),
              ElementsAre(HasSubstr("masks: field 'image' is an encoded image")));
  EXPECT_THAT(faults({EncodedField("image"), label}, SpecOf({Resize{4, 4}})), IsEmpty());
  EXPECT_THAT(faults({ImageField()}, SpecOf(flip, {}, {"image"})),
              ElementsAre(HasSubstr("with 1 or 3 channels that is not named in masks or fields_unchanged")));
}

// A mask may itself look like an image.
TEST(MaskTest, NamedFieldIsNotTakenForTheImage) {
  const auto create = [](const FeedSpec& spec) {
    return SampleLoader::Create(
        std::make_shared<MemoryDataset>(std::vector<Field>{TensorField("x", DType::kUint8, {3, 8, 8}),
                                                           TensorField("y", DType::kUint8, {1, 8, 8})},
                                        std::vector<std::vector<std::vector<std::byte>>>(1)),
        spec);
  };
  EXPECT_THAT(create(SpecOf({CenterCrop{4, 4}})),
              StatusIs(Code::kInvalidArgument, HasSubstr("name the others in masks or fields_unchanged")));
  ASSERT_OK_AND_ASSIGN(const auto loader, create(SpecOf({CenterCrop{4, 4}}, {"y"})));
  EXPECT_THAT(loader->outputs(), ElementsAre(TensorSpec{"x", DType::kUint8, {3, 4, 4}},
                                             TensorSpec{"y", DType::kUint8, {1, 4, 4}}));
}

TEST(MaskTest, TransformsNeedOneImage) {
  const auto create = [](std::vector<Field> fields) {
    return SampleLoader::Create(std::make_shared<MemoryDataset>(
                                    std::move(fields), std::vector<std::vector<std::vector<std::byte>>>(1)),
                                SpecOf({RandomHorizontalFlip{}}));
  };
  const Field a = TensorField("a", DType::kUint8, {3, 8, 8});
  const Field b = TensorField("b", DType::kUint8, {8, 8, 1});
  EXPECT_THAT(create({TensorField("x", DType::kFloat32, {3, 8, 8})}),
              StatusIs(Code::kInvalidArgument, HasSubstr("has no image for them")));
  EXPECT_THAT(create({a, b}), StatusIs(Code::kInvalidArgument, HasSubstr("several images ('a', 'b')")));
  EXPECT_OK(create({a, TensorField("image", DType::kUint8, {9, 9, 1})}));
  EXPECT_THAT(
      create({TensorField("a", DType::kUint8, {3, 8, 3})}),
      StatusIs(Code::kInvalidArgument, HasSubstr("[3, 8, 3] may be channels first or channels last")));
  EXPECT_THAT(create({TensorField("a", DType::kUint8, {3, 0, 8})}),
              StatusIs(Code::kInvalidArgument, HasSubstr("is no image")));
  EXPECT_THAT(create({EncodedField("left"), EncodedField("right")}),
              StatusIs(Code::kInvalidArgument, HasSubstr("several images ('left', 'right')")));
}

TEST(MaskTest, SampleWhoseMaskCannotBeReadIsBad) {
  const auto dataset = std::make_shared<MemoryDataset>(
      std::vector<Field>{ImageField(), TensorField("mask", DType::kUint8, {kHeight, kWidth})},
      std::vector<std::vector<std::vector<std::byte>>>{{Counting(kHeight * kWidth * 3), Counting(1)}});
  for (const double p : {0.0, 1.0}) {
    ASSERT_OK_AND_ASSIGN(
        const auto loader,
        SampleLoader::Create(dataset, SpecOf({RandomHorizontalFlip{p}, CenterCrop{4, 4}}, {"mask"})));
    std::vector<std::byte> image(48);
    std::vector<std::byte> mask(16);
    const std::vector<std::span<std::byte>> places = {image, mask};
    SampleScratch scratch;
    SampleTimes times;
    EXPECT_THAT(loader->Load({0, 0}, places, scratch, times),
                StatusIs(Code::kDataLoss, HasSubstr("memory/0")));
  }
}

}  // namespace
}  // namespace pinfeed
