// SPDX-License-Identifier: Apache-2.0
// Slots of a daemon that writes what it likes.
#include "client/src/decode/decoded_layout.h"

#include <cstring>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr uint32_t kSamples = 4;
constexpr uint64_t kCapacity = 100;  // bytes of an encoded image; its pixels are 2 x 3 x 3

// Tensors: encoded images, their plans, marks and extents; labels; texts and their extents.
enum Tensor : uint32_t { kImage, kPlan, kMark, kImageExtents, kLabel, kText, kTextExtents };

FeedOffer MakeOffer() {
  FeedOffer offer;
  TensorSpec image{"image", DType::kUint8, {kCapacity}};
  image.extents = kImageExtents;
  TensorSpec text{"text", DType::kUint8, {10}};
  text.extents = kTextExtents;
  offer.layout = BatchLayout::Create({image,
                                      {"image.plan", DType::kUint8, {sizeof(ImagePlan)}},
                                      {"image.mark", DType::kUint8, {}},
                                      {"image.extents", DType::kInt64, {2}},
                                      {"label", DType::kInt64, {}},
                                      text,
                                      {"text.extents", DType::kInt64, {2}}},
                                     kSamples)
                     .value();
  offer.slot_count = 4;
  offer.arena_bytes = 4 * offer.layout.slot_stride;
  offer.lifeline_path = "/l";
  offer.decode = Decode::kGpu;
  offer.sample_id_tensor = kLabel;
  OfferedOutput output;
  output.spec = {"image", DType::kUint8, {3, 2, 3}};
  output.tensor = kImage;
  output.image.emplace();
  output.image->height = 2;
  output.image->width = 3;
  output.image->channels = 3;
  output.image->mark = kMark;
  output.image->plan = kPlan;
  output.image->table.resize(size_t{256} * 3);
  offer.outputs = {output};
  for (const uint32_t tensor : {kLabel, kText, kTextExtents})
    offer.outputs.push_back({offer.layout.tensors[tensor].spec, tensor, {}});
  return offer;
}

class DecodedLayoutTest : public ::testing::Test {
 protected:
  DecodedLayoutTest() : slot_(layout_.offer().layout.slot_stride) {}
  template <typename T>
  void Write(uint32_t tensor, uint32_t sample, const T& value) {
    const TensorPlace& place = layout_.offer().layout.tensors[tensor];
    std::memcpy(slot_.data() + place.offset + sample * place.sample_bytes, &value, sizeof value);
  }
  void WriteImage(uint32_t sample, ImagePlanKind kind, RowExtent extent) {
    ImagePlan plan{};
    plan.kind = static_cast<uint32_t>(kind);
    Write(kPlan, sample, plan);
    Write(kImageExtents, sample, extent);
  }
  Status ImageStatus(ImagePlanKind kind, RowExtent extent) {
    WriteImage(1, kind, extent);
    return layout_.ImageOf(slot_.data(), 1).status();
  }

  const DecodedLayout layout_{MakeOffer()};
  std::vector<std::byte> slot_;
};

TEST_F(DecodedLayoutTest, ImagesLieWithinTheirTensor) {
  WriteImage(2, ImagePlanKind::kJpeg, {250, 60});
  ASSERT_OK_AND_ASSIGN(const DecodedLayout::Image image, layout_.ImageOf(slot_.data(), 2));
  EXPECT_EQ(image.bytes.data(), slot_.data() + 250);
  EXPECT_EQ(image.bytes.size(), 60U);
  const RowExtent impossible[] = {{-1, 1}, {0, -1}, {0, 101}, {301, 100}, {INT64_MAX, 2}, {400, 1}};
  for (const RowExtent& extent : impossible) {
    EXPECT_THAT(ImageStatus(ImagePlanKind::kJpeg, extent), StatusIs(Code::kInternal, HasSubstr("outside")))
        << extent.first << " " << extent.count;
  }
}

TEST_F(DecodedLayoutTest, PlansFitTheirBytes) {
  EXPECT_OK(ImageStatus(ImagePlanKind::kPixels, {0, 18}));
  EXPECT_OK(ImageStatus(ImagePlanKind::kZero, {0, 0}));
  EXPECT_THAT(ImageStatus(ImagePlanKind::kPixels, {0, 19}), StatusIs(Code::kInternal, HasSubstr("plan")));
  EXPECT_THAT(ImageStatus(ImagePlanKind::kZero, {0, 1}), StatusIs(Code::kInternal, HasSubstr("plan")));
  EXPECT_THAT(ImageStatus(ImagePlanKind{3}, {0, 18}), StatusIs(Code::kInternal, HasSubstr("plan")));
}

TEST_F(DecodedLayoutTest, OtherTensorsAreCopiedToTheirPlaces) {
  Write(kTextExtents, 0, RowExtent{5, 10});
  std::vector<std::byte> memory(layout_.bytes());
  std::vector<DecodeWorker::Copy> copies;
  ASSERT_OK(layout_.AddCopies(slot_.data(), 3, memory.data(), copies));
  ASSERT_EQ(copies.size(), 4U) << "marks, labels, texts and their extents";
  for (const DecodeWorker::Copy& copy : copies) {
    EXPECT_GE(copy.to, memory.data());
    EXPECT_LE(copy.to + copy.bytes, memory.data() + memory.size());
  }
  EXPECT_EQ(copies[1].bytes, 24U);
  EXPECT_EQ(copies[2].bytes, 15U) << "up to the last row";
  Write(kTextExtents, 1, RowExtent{35, 10});
  EXPECT_THAT(layout_.AddCopies(slot_.data(), 3, memory.data(), copies),
              StatusIs(Code::kInternal, HasSubstr("outside")));
}

TEST_F(DecodedLayoutTest, SampleWhoseImageFailsKeepsItsId) {
  std::vector<std::byte> memory(layout_.bytes());
  std::vector<DecodeWorker::Copy> copies;
  layout_.AddZeroes(2, memory.data(), copies);
  ASSERT_EQ(copies.size(), 2U) << "mark and the text's extent";
  EXPECT_EQ(*copies[0].from, std::byte{2});
  EXPECT_EQ(copies[0].to, memory.data() + layout_.offsets()[kMark] + 2);
  EXPECT_EQ(copies[1].from, nullptr);
  EXPECT_EQ(copies[1].bytes, sizeof(RowExtent));
}

TEST(DecodedOfferTest, OfferIsCheckedWhole) {
  FeedOffer good = MakeOffer();
  ASSERT_OK(CheckOffer(good));
  ASSERT_NE(good.Decoded(), nullptr);
  const auto refused = [](auto change) {
    FeedOffer offer = MakeOffer();
    change(offer);
    return CheckOffer(offer);
  };
  const auto image = [](FeedOffer& offer) -> OfferedImage& { return *offer.outputs[0].image; };
  const auto expect_broken = [&](auto change, const char* message) {
    EXPECT_THAT(refused(change), StatusIs(Code::kInternal, HasSubstr(message)));
  };
  // What has no place in the memory of decoded batches is no output.
  for (const uint32_t tensor : {kImage, kPlan, kImageExtents}) {
    expect_broken(
        [&](FeedOffer& o) {
          o.outputs.push_back({o.layout.tensors[tensor].spec, tensor, {}});
          o.outputs.back().spec.name = "another";
        },
        "'another' is made of what only a decoder reads");
  }
  expect_broken(
      [&](FeedOffer& o) {  // an image of 64 elements, made of the plans
        o.outputs.push_back({{"another", DType::kUint8, {1, 8, 8}}, kPlan, image(o)});
        OfferedImage& other = *o.outputs.back().image;
        other.plan.reset();
        other.height = other.width = 8;
        other.channels = 1;
        other.table.resize(256);
      },
      "'another' is made of what only a decoder reads");
  expect_broken([&](FeedOffer& o) { o.outputs[1].spec.name = "image"; }, "two outputs are named 'image'");
  expect_broken([&](FeedOffer& o) { o.outputs[1].spec.dtype = DType::kFloat64; }, "type and shape");
  expect_broken([&](FeedOffer& o) { o.outputs[1].spec.shape = {1}; }, "type and shape");
  expect_broken([&](FeedOffer& o) { o.outputs[0].spec.shape = {3, 3, 2}; }, "another size");
  expect_broken([&](FeedOffer& o) { o.gpu_share = 5; }, "a share of 5");
  for (const uint32_t share : {0U, 1001U, UINT32_MAX}) {
    expect_broken(
        [&](FeedOffer& o) {
          o.decode = Decode::kAuto;
          o.gpu_share = share;
        },
        "a share of");
  }
  expect_broken(
      [&](FeedOffer& o) {
        o.decode = Decode::kCpu;
        o.backend = Backend::kVmmFd;
        o.arena_bytes += 4096;
      },
      "nothing is to be");
  expect_broken([&](FeedOffer& o) { o.sample_id_tensor = kImageExtents; }, "ids");
  expect_broken([&](FeedOffer& o) { image(o).mark = kText; }, "marks");
  expect_broken([&](FeedOffer& o) { o.layout.tensors[kPlan].spec.dtype = DType::kInt8; }, "plans");
  expect_broken([&](FeedOffer& o) { o.outputs[0].tensor = 99; }, "refers to no tensor");
  EXPECT_FALSE(refused([&](FeedOffer& o) { image(o).plan = kLabel; }).ok());
  EXPECT_FALSE(refused([&](FeedOffer& o) { image(o).plan = 99; }).ok());
  EXPECT_FALSE(refused([&](FeedOffer& o) { image(o).plan.reset(); }).ok());
  EXPECT_FALSE(refused([&](FeedOffer& o) { image(o).mark.reset(); }).ok());
  EXPECT_FALSE(refused([&](FeedOffer& o) { image(o).mark = kLabel; }).ok());
  EXPECT_FALSE(refused([&](FeedOffer& o) { image(o).height = 12; }).ok())
      << "more pixels than there is memory";
  EXPECT_FALSE(refused([&](FeedOffer& o) { image(o).source_layout = ImageLayout::kChw; }).ok());
  EXPECT_FALSE(refused([&](FeedOffer& o) { o.outputs[0].tensor = kLabel; }).ok());
  EXPECT_FALSE(refused([&](FeedOffer& o) { o.outputs.push_back(o.outputs[0]); }).ok());
  EXPECT_FALSE(refused([&](FeedOffer& o) { o.sample_id_tensor = 99; }).ok());
  EXPECT_FALSE(refused([&](FeedOffer& o) { o.backend = Backend::kVmmFd; }).ok());
}

}  // namespace
}  // namespace pinfeed
