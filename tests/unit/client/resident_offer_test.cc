// SPDX-License-Identifier: Apache-2.0
// Offers of resident samples, of a daemon that is broken.
#include "client/src/link/offer.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr uint32_t kResidentSamples = 100;

FeedOffer MakeResidentOffer() {
  FeedOffer offer;
  offer.layout = BatchLayout::Create({{"resident.index", DType::kUint32, {}}}, 8).value();
  offer.slot_count = 4;
  offer.arena_bytes = 4 * offer.layout.slot_stride;
  offer.lifeline_path = "/l";
  OfferedResident& resident = offer.resident.emplace();
  resident.layout = BatchLayout::Create({{"image", DType::kUint8, {4, 6, 3}}, {"label", DType::kInt64, {}}},
                                        kResidentSamples)
                        .value();
  resident.bytes = resident.layout.slot_stride + 4096;
  OfferedOutput output{{"image", DType::kFloat16, {3, 2, 5}}, 0, OfferedImage()};
  output.image->height = 2;
  output.image->width = 5;
  output.image->channels = 3;
  output.image->table.resize(size_t{256} * 3);
  SampleView& view = output.image->view.emplace();
  view.source_height = 4;
  view.source_width = 6;
  view.height = 2;
  view.width = 5;
  view.crop_x = -1;
  view.positions_x = 4;
  view.positions_y = 3;
  view.step_count = 2;
  view.steps[0] = {0.5, 0, ViewStep::kFlip};
  view.steps[1] = {0, 1, ViewStep::kCrop};
  offer.outputs = {output, {{"label", DType::kInt64, {}}, 1, {}}};
  return offer;
}

template <typename Change>
void ExpectBroken(const Change& change, const char* message) {
  FeedOffer offer = MakeResidentOffer();
  change(offer);
  EXPECT_THAT(CheckOffer(offer), StatusIs(Code::kInternal, HasSubstr(message)));
}

SampleView& ViewOf(FeedOffer& offer) {
  return *offer.outputs[0].image->view;
}

TEST(ResidentOfferTest, GoodOneIsOnTheGpu) {
  FeedOffer offer = MakeResidentOffer();
  ASSERT_OK(CheckOffer(offer));
  EXPECT_TRUE(offer.OnGpu());
  EXPECT_EQ(&offer.source(), &offer.resident->layout);
}

TEST(ResidentOfferTest, SamplesLieWithinTheirMemory) {
  ExpectBroken([](FeedOffer& o) { --o.resident->layout.tensors[1].sample_bytes; },
               "bytes where its shape has");
  ExpectBroken([](FeedOffer& o) { o.resident->layout.batch_size = 1'000'000; }, "ends after its slot");
  ExpectBroken([](FeedOffer& o) { o.resident->layout.slot_stride += 4096 + 512; }, "the id of the resident");
  ExpectBroken([](FeedOffer& o) { o.resident->bytes = o.resident->layout.slot_stride; },
               "the id of the resident");
  ExpectBroken([](FeedOffer& o) { o.resident->layout.slot_stride += 8; }, "the id of the resident");
  ExpectBroken([](FeedOffer& o) { o.resident->layout.tensors.clear(); }, "no tensors");
  ExpectBroken([](FeedOffer& o) { o.outputs[1].tensor = 2; }, "refers to no tensor");
  ExpectBroken([](FeedOffer& o) { o.outputs[1].spec.dtype = DType::kFloat64; }, "type and shape");
  ExpectBroken(
      [](FeedOffer& o) {
        o.resident->layout.tensors[1].spec.shape = {2};
        o.resident->layout.tensors[1].spec.extents = 0;
      },
      "");
}

TEST(ResidentOfferTest, SlotsAreListsInHostMemory) {
  ExpectBroken([](FeedOffer& o) { o.backend = Backend::kVmmFd; }, "");
  ExpectBroken([](FeedOffer& o) { o.decode = Decode::kGpu; }, "");
  ExpectBroken(
      [](FeedOffer& o) {
        o.layout = BatchLayout::Create({{"i", DType::kInt64, {}}}, 8).value();
      },
      "not lists");
  ExpectBroken(
      [](FeedOffer& o) {
        o.layout = BatchLayout::Create({{"i", DType::kUint32, {}}, {"j", DType::kUint32, {}}}, 8).value();
      },
      "not lists");
}

TEST(ResidentOfferTest, ViewsAreOfTheirImages) {
  const char* const kImpossible = "shows an impossible part of its image";
  ExpectBroken([](FeedOffer& o) { o.outputs[0].image->view.reset(); }, "not both resident");
  ExpectBroken([](FeedOffer& o) { ViewOf(o).source_width = 7; }, "does not hold its pixels");
  ExpectBroken([&](FeedOffer& o) { ViewOf(o).positions_y = 0; }, kImpossible);
  ExpectBroken([&](FeedOffer& o) { ViewOf(o).positions_x = 1U << 31; }, kImpossible);
  ExpectBroken([&](FeedOffer& o) { ViewOf(o).crop_y = INT32_MIN; }, kImpossible);
  ExpectBroken([&](FeedOffer& o) { ViewOf(o).crop_x = INT32_MAX; }, kImpossible);
  ExpectBroken([&](FeedOffer& o) { ViewOf(o).border = 4; }, kImpossible);
  ExpectBroken([&](FeedOffer& o) { ViewOf(o).steps[0].kind = 4; }, kImpossible);
  ExpectBroken([&](FeedOffer& o) { ViewOf(o).steps[0].kind = ViewStep::kCrop; }, kImpossible);
  ExpectBroken([&](FeedOffer& o) { ViewOf(o).step_count = 1; }, kImpossible);
  ExpectBroken([&](FeedOffer& o) { ViewOf(o).step_count = kMaxViewSteps + 1; }, kImpossible);
  ExpectBroken([&](FeedOffer& o) { o.outputs[0].image->height = 3; }, "");
  ExpectBroken([&](FeedOffer& o) { o.outputs[0].image->mark = 1; }, "marks that nothing reads");
}

TEST(ResidentOfferTest, ALaterSessionIsOfTheSameKind) {
  const FeedOffer before = MakeResidentOffer();
  FeedOffer now = MakeResidentOffer();
  EXPECT_OK(CheckSameFeed(before, now));
  now.resident.reset();
  EXPECT_THAT(CheckSameFeed(before, now), StatusIs(Code::kFailedPrecondition, HasSubstr("not resident")));
  now = MakeResidentOffer();
  now.resident->layout.tensors[0].spec.shape = {6, 4, 3};
  EXPECT_THAT(CheckSameFeed(before, now), StatusIs(Code::kFailedPrecondition, HasSubstr("other tensors")));
}

}  // namespace
}  // namespace pinfeed
