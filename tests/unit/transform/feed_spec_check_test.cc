// SPDX-License-Identifier: Apache-2.0
#include "common/spec/feed_spec_check.h"

#include <limits>
#include <vector>

#include "server/dataset/open_dataset.h"
#include "tests/support/parameters.h"
#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"

namespace pinfeed {
namespace {

FeedSpec Valid() {
  FeedSpec spec;
  spec.dataset.path = "/data/train";
  spec.batch_size = 1;
  return spec;
}

std::string FaultsOf(const FeedSpec& spec) {
  Faults faults;
  CheckFeedSpec(spec, faults);
  CheckDatasetOptions(spec.dataset, faults);
  std::vector<TransformSpec> transforms = spec.transforms;
  TransformChain::Parse(transforms, faults);
  return faults.ToStatus().message();
}

std::string FaultsOf(std::vector<TransformSpec> transforms) {
  FeedSpec spec = Valid();
  spec.transforms = std::move(transforms);
  return FaultsOf(spec);
}

TEST(FeedSpecCheckTest, AcceptsWhatTorchvisionUsersWrite) {
  EXPECT_EQ(FaultsOf(Valid()), "");
  EXPECT_EQ(
      FaultsOf({ToDtype{DType::kUint8, true}, RandomResizedCrop{224, 224}, RandomHorizontalFlip{},
                Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}, ToDtype{DType::kBfloat16, false}}),
      "");
  EXPECT_EQ(FaultsOf({Resize{0, 256}, Resize{0, 256, 300}, Resize{0, 0, 300}, CenterCrop{224, 224},
                      ToDtype{DType::kFloat32, true}, RandomHorizontalFlip{0}}),
            "");
}

TEST(FeedSpecCheckTest, NumbersThatFloat32DoesNotHoldAreRefused) {
  EXPECT_EQ(FaultsOf({Normalize{{1e300}, {1}}}),
            "transforms[0] normalize.mean: holds a value that is not finite, also as float32");
  EXPECT_EQ(FaultsOf({Normalize{{0}, {1e39}}}),
            "transforms[0] normalize.std: holds a value that is not finite, also as float32");
}

TEST(FeedSpecCheckTest, OfVeryManyFaultsTheFirstAreNamed) {
  FeedSpec spec = Valid();
  spec.pad.resize(300'000);
  EXPECT_THAT(FaultsOf(spec), HasSubstr("pad: has 300000 names, at most"));
  EXPECT_LT(FaultsOf(spec).size(), 200U);
  const std::string faults = FaultsOf(std::vector<TransformSpec>(100, Resize{0, 0}));
  EXPECT_THAT(faults, HasSubstr("transforms[31]"));
  EXPECT_THAT(faults, EndsWith("\nand 68 more faults"));
}

TEST(FeedSpecCheckTest, NamesEveryFaultOfATransformWithItsPlace) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(FaultsOf({Resize{0, 0}}), "transforms[0] resize.size: 0 is not within 1 to 65500");
  EXPECT_EQ(FaultsOf({Resize{5, 0}}), "transforms[0] resize.size: 0 is not within 1 to 65500");
  EXPECT_EQ(FaultsOf({Resize{0, 0, 70000}}), "transforms[0] resize.max_size: 70000 is not within 1 to 65500");
  EXPECT_EQ(FaultsOf({Resize{0, 5, 5}}), "transforms[0] resize.max_size: 5 is not above size, 5");
  EXPECT_EQ(FaultsOf({RandomHorizontalFlip{}, CenterCrop{70000, 0}}),
            "transforms[1] center_crop.size: 70000 is not within 1 to 65500\n"
            "transforms[1] center_crop.size: 0 is not within 1 to 65500");
  EXPECT_EQ(FaultsOf({CenterCrop{65500, 65500}}),
            "transforms[0] center_crop.size: 65500 x 65500 is over the limit of 268435456 pixels");
  EXPECT_EQ(FaultsOf({RandomResizedCrop{4, 4, 0.5, 0.25, nan, 1}}),
            "transforms[0] random_resized_crop.scale: must be two finite numbers, 0 < least <= greatest\n"
            "transforms[0] random_resized_crop.ratio: must be two finite numbers, 0 < least <= greatest");
  EXPECT_EQ(FaultsOf({RandomResizedCrop{4, 4, 0.5, 1.5, 1, 1}}),
            "transforms[0] random_resized_crop.scale: 1.5 is above 1, the whole area");
  EXPECT_EQ(FaultsOf({RandomHorizontalFlip{nan}}),
            "transforms[0] random_horizontal_flip.p: nan is not within 0 to 1");
  EXPECT_EQ(FaultsOf({RandomVerticalFlip{-1}}),
            "transforms[0] random_vertical_flip.p: -1 is not within 0 to 1");
  EXPECT_EQ(FaultsOf({RandomCrop{4, 0}}), "transforms[0] random_crop.size: 0 is not within 1 to 65500");
  EXPECT_EQ(FaultsOf({Normalize{{}, {-1}}}),
            "transforms[0] normalize.mean: has 0 values; give one, or one a channel\n"
            "transforms[0] normalize.std: holds -1; it must be above 0, also as float32");
  EXPECT_EQ(FaultsOf({Normalize{{nan}, {1e-60}}}),
            "transforms[0] normalize.mean: holds a value that is not finite, also as float32\n"
            "transforms[0] normalize.std: holds 1e-60; it must be above 0, also as float32");
  EXPECT_EQ(FaultsOf({Interpolated(Resize{4, 4}, {"bicubic", "box"})}),
            "transforms[0] resize.interpolation: is none of nearest, bilinear, bicubic, lanczos");
  EXPECT_EQ(FaultsOf({Grayscale{2}}), "transforms[0] grayscale.num_output_channels: 2 is neither 1 nor 3");
  EXPECT_EQ(FaultsOf({Pad{{1, 2, 3}, {1, 2}, "wrap"}, Pad{{-1}, {256}}, Pad{{1}, {1}, "edge"}}),
            "transforms[0] pad.padding: has 3 values; give one, or left/right and top/bottom, or left, top, "
            "right, bottom\n"
            "transforms[0] pad.fill: has 2 values; give one, or one a channel\n"
            "transforms[0] pad.padding_mode: is none of constant, edge, reflect, symmetric\n"
            "transforms[1] pad.padding: -1 is not within 0 to 65500\n"
            "transforms[1] pad.fill: 256 is not within 0 to 255\n"
            "transforms[2] pad.fill: goes with the padding_mode constant only");
  EXPECT_EQ(
      FaultsOf(
          {TransformSpec{"resize", {{"size", std::vector<double>{4}}, {"depth", std::vector<double>{1}}}},
           TransformSpec{"to_dtype", {{"dtype", std::vector<double>{1}}}}, TransformSpec{"rotate", {}}}),
      "transforms[0] resize.depth: is no parameter of resize\n"
      "transforms[1] to_dtype.dtype: must be text\n"
      "transforms[1] to_dtype.dtype: is none of uint8, float32, float16, bfloat16\n"
      "transforms[2]: names no operation that this daemon knows");
  EXPECT_EQ(FaultsOf({ToDtype{DType::kInt64, false}}),
            "transforms[0] to_dtype.dtype: is none of uint8, float32, float16, bfloat16");
  EXPECT_EQ(FaultsOf({ToDtype{DType::kFloat32, true}, Resize{4, 4}}),
            "transforms[1] resize: comes after normalize or to_dtype, but works on uint8 pixels; move it "
            "before them");
}

TEST(FeedSpecCheckTest, DecodingOnTheGpuHasItsLimits) {
  FeedSpec spec = Valid();
  spec.decode = Decode::kGpu;
  EXPECT_EQ(FaultsOf(spec), "");
  spec.on_bad_sample = OnBadSample::kSkip;
  spec.backend = Backend::kVmmFd;
  spec.gpu_share = 5;
  const std::string faults = FaultsOf(spec);
  EXPECT_NE(faults.find("on_bad_sample: skip is not possible with the decode GPU or AUTO"),
            std::string::npos);
  EXPECT_NE(faults.find("backend: must be AUTO"), std::string::npos);
  EXPECT_NE(faults.find("gpu_share: is for the decode AUTO only"), std::string::npos);
  spec = Valid();
  spec.decode = Decode::kAuto;
  spec.backend = Backend::kVmmFd;
  spec.gpu_share = 1000;
  EXPECT_EQ(FaultsOf(spec), "");
  spec.gpu_share = 1001;
  EXPECT_EQ(FaultsOf(spec), "gpu_share: 1001 is not within 0 to 1000, per mille");
}

TEST(FeedSpecCheckTest, EncodedImagesAreForAProducedDataset) {
  FeedSpec spec = Valid();
  spec.encoded_images = 4;
  EXPECT_EQ(
      FaultsOf(spec),
      "encoded_images: is for a produced dataset only: other datasets say themselves what their images are");
  spec.dataset = {};
  spec.dataset.produced = ProducedDataset{"photos", 10, {{"batch", DType::kUint8, {64}}}, "", 0, 0};
  spec.backend = Backend::kHost;
  spec.batch_size = 1;
  spec.transforms = {Resize{4, 4}};
  EXPECT_EQ(FaultsOf(spec), "");
  spec.encoded_images = 0;
  EXPECT_NE(FaultsOf(spec).find("transforms: is not possible with a produced dataset"), std::string::npos);
  spec.encoded_images = 65537;
  EXPECT_EQ(FaultsOf(spec), "encoded_images: 65537 is not within 0 to 65536");
  spec.encoded_images = 65536;
  spec.batch_size = 2;
  EXPECT_EQ(FaultsOf(spec).substr(0, 38), "batch_size: must be 1 with encoded_ima");
  spec.batch_size = 1;
  for (const TensorSpec& field :
       {TensorSpec{"batch", DType::kUint8, {63}}, TensorSpec{"batch", DType::kInt8, {64}},
        TensorSpec{"batch", DType::kUint8, {8, 8}}}) {
    spec.dataset.produced->fields = {field};
    EXPECT_EQ(FaultsOf(spec).substr(0, 47), "dataset.produced.fields[0]: must be UINT8 with ");
  }
}

TEST(FeedSpecCheckTest, OpenDecisionSharesAFeedWithAnyOther) {
  FeedSpec open = Valid();
  open.decode = Decode::kAuto;
  FeedSpec decided = open;
  decided.gpu_share = 700;
  FeedSpec cpu = Valid();
  EXPECT_TRUE(MayShareFeed(open, decided));
  EXPECT_TRUE(MayShareFeed(decided, open));
  EXPECT_TRUE(MayShareFeed(cpu, open)) << "for which the daemon decided so";
  EXPECT_FALSE(MayShareFeed(cpu, decided));
  open.seed = 1;
  EXPECT_FALSE(MayShareFeed(open, decided));
}

TEST(FeedSpecCheckTest, FaultsOfAllFieldsComeTogether) {
  FeedSpec spec = Valid();
  spec.dataset = {};
  spec.dataset.format = "npy";
  spec.dataset.options["token_dtype"] = Word("uint16");
  spec.batch_size = 0;
  spec.world_size = 0;
  spec.transforms = {CenterCrop{0, 4}, RandomHorizontalFlip{2}, Normalize{{0}, {-1}}};
  spec.slots = 1;
  spec.sharing = Sharing::kQueue;
  EXPECT_EQ(FaultsOf(spec),
            "dataset: needs a name or a path\n"
            "batch_size: must be at least 1\n"
            "world_size: must be at least 1\n"
            "slots: 1 is not within 3 to 64\n"
            "group: must name the group that shares the feed\n"
            "dataset.token_dtype: is for the format tokens only\n"
            "transforms[0] center_crop.size: 0 is not within 1 to 65500\n"
            "transforms[1] random_horizontal_flip.p: 2 is not within 0 to 1\n"
            "transforms[2] normalize.std: holds -1; it must be above 0, also as float32");
  spec = Valid();
  spec.rank = spec.world_size = 2;
  EXPECT_EQ(FaultsOf(spec), "rank: 2 is not below the world_size of 2");
}

}  // namespace
}  // namespace pinfeed
