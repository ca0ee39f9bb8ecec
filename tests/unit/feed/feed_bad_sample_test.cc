// SPDX-License-Identifier: Apache-2.0
// Samples of several fields, some of which cannot be read: what a batch then holds, in every field.
#include <cstring>

#include "tests/support/transform_specs.h"
#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

constexpr int64_t kHeight = 4;
constexpr int64_t kWidth = 5;
constexpr size_t kPixels = kHeight * kWidth;

// Sample i: an image and a mask whose pixels count from i on, and the label 100 + i. In sample i of
// `bad_field`, that field cannot be read: it writes some bytes and fails.
class MaskedDataset final : public Dataset {
 public:
  explicit MaskedDataset(uint64_t samples, std::map<uint64_t, size_t> bad_field = {})
      : bad_field_(std::move(bad_field)) {
    info_.format = "masked";
    info_.path = "/masked";
    info_.samples = samples;
    info_.fingerprint = "0123456789abcdef";
    info_.fields = {{{"image", DType::kUint8, {1, kHeight, kWidth}}, FieldKind::kTensor},
                    {{"label", DType::kInt64, {}}, FieldKind::kTensor},
                    {{"mask", DType::kInt16, {kHeight, kWidth}}, FieldKind::kTensor}};
  }
  const DatasetInfo& info() const override { return info_; }
  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    const auto bad = bad_field_.find(id);
    if (bad != bad_field_.end() && bad->second == field) {
      std::memset(out.data(), 0x55, out.size() / 2);
      return DataLoss("read sample " + std::to_string(id) + ": it is bad");
    }
    const auto label = static_cast<int64_t>(100 + id);
    if (field == 1) std::memcpy(out.data(), &label, sizeof(label));
    for (size_t i = 0; i < kPixels && field != 1; ++i) {
      const auto pixel = static_cast<int16_t>(id + i);
      if (field == 0) out[i] = static_cast<std::byte>(pixel);
      if (field == 2) std::memcpy(out.data() + 2 * i, &pixel, sizeof(pixel));
    }
    return OkStatus();
  }
  std::string Describe(uint64_t id) const override { return "sample " + std::to_string(id); }

 private:
  DatasetInfo info_;
  std::map<uint64_t, size_t> bad_field_;
};

template <typename T>
std::vector<T> ValuesOf(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class FeedBadSampleTest : public FeedTest {
 protected:
  using FeedTest::FeedTest;
  static FeedSpec Masked(OnBadSample choice, uint64_t epochs) {
    FeedSpec spec = Spec(8, epochs);
    spec.order = Order::kSequential;
    spec.on_bad_sample = choice;
    spec.transforms = {RandomHorizontalFlip{}, CenterCrop{kHeight - 1, kWidth - 2}};
    spec.masks = {"mask"};
    spec.sample_ids = true;
    spec.valid = true;
    return spec;
  }
  enum TensorIndex : size_t { kImage, kLabel, kMask, kSampleId, kValid };

  // Checks sample `i` of the batch against what its tensors "sample_id" and "valid" say. Whether it is
  // mirrored.
  static bool CheckSample(const PageClient& client, const BatchDescriptor& batch, uint32_t i) {
    const auto id = ValuesOf<int64_t>(client.Tensor(batch, kSampleId))[i];
    const bool valid = ValuesOf<uint8_t>(client.Tensor(batch, kValid))[i] != 0;
    const size_t pixels = (kHeight - 1) * (kWidth - 2);
    const auto image = ValuesOf<uint8_t>(client.Tensor(batch, kImage).subspan(i * pixels, pixels));
    const auto mask = ValuesOf<int16_t>(client.Tensor(batch, kMask).subspan(2 * i * pixels, 2 * pixels));
    EXPECT_EQ(ValuesOf<int64_t>(client.Tensor(batch, kLabel))[i], valid ? 100 + id : 0) << "sample " << id;
    if (!valid) {
      EXPECT_EQ(image, std::vector<uint8_t>(pixels)) << "sample " << id;
      EXPECT_EQ(mask, std::vector<int16_t>(pixels)) << "sample " << id;
      return false;
    }
    EXPECT_EQ(std::vector<int16_t>(image.begin(), image.end()), mask) << "sample " << id;
    EXPECT_EQ(std::min(mask[0], mask[kWidth - 3]), id + 1) << "sample " << id;
    return mask[0] > mask[1];
  }
};

// The unruly producer transforms nothing.
class TransformedBadSampleTest : public FeedBadSampleTest {};

// Three fields, each of which fails in some samples, at the ends and in the midst of batches.
const std::map<uint64_t, size_t> kBad = {{0, 2}, {3, 0}, {4, 1}, {7, 2}, {10, 1}, {23, 0}, {24, 2}, {31, 1}};

TEST_P(TransformedBadSampleTest, ZeroedSamplesAreZeroInEveryField) {
  const auto feed = Make(Masked(OnBadSample::kZero, 1), std::make_shared<MaskedDataset>(32, kBad));
  AttachedClient client(*feed, Sampler::Start{});
  std::vector<uint64_t> invalid;
  size_t mirrored = 0;
  uint64_t next = 0;
  while (const auto batch = client.Next()) {
    ASSERT_EQ(batch->samples, 8U);
    for (uint32_t i = 0; i < 8; ++i, ++next) {
      EXPECT_EQ(ValuesOf<int64_t>(client.Tensor(*batch, kSampleId))[i], static_cast<int64_t>(next));
      if (ValuesOf<uint8_t>(client.Tensor(*batch, kValid))[i] == 0) invalid.push_back(next);
      mirrored += CheckSample(client, *batch, i) ? 1 : 0;
    }
    client.Release(*batch, *feed);
  }
  EXPECT_THAT(invalid, ElementsAre(0, 3, 4, 7, 10, 23, 24, 31));
  EXPECT_GT(mirrored, 3U);
  EXPECT_LT(mirrored, 21U);
}

TEST_P(TransformedBadSampleTest, SkippedSamplesAreTakenOutOfEveryField) {
  std::map<uint64_t, size_t> bad = kBad;
  for (uint64_t id = 24; id < 32; ++id) bad[id] = id % 3;  // the whole last batch
  const auto feed = Make(Masked(OnBadSample::kSkip, 1), std::make_shared<MaskedDataset>(32, bad));
  AttachedClient client(*feed, Sampler::Start{});
  uint64_t next = 0;
  std::vector<uint32_t> sizes;
  uint32_t last_flags = 0;
  while (const auto batch = client.Next()) {
    sizes.push_back(batch->samples);
    last_flags = batch->flags;
    for (uint32_t i = 0; i < batch->samples; ++i, ++next) {
      while (bad.contains(next)) ++next;
      EXPECT_EQ(ValuesOf<int64_t>(client.Tensor(*batch, kSampleId))[i], static_cast<int64_t>(next));
      EXPECT_EQ(ValuesOf<uint8_t>(client.Tensor(*batch, kValid))[i], 1);
      CheckSample(client, *batch, i);
    }
    client.Release(*batch, *feed);
  }
  EXPECT_THAT(sizes, ElementsAre(4, 7, 7, 0));
  EXPECT_EQ(last_flags, kFlagLastOfEpoch);
}

// I4 with masks and bad samples: the bytes depend on spec and seed only.
TEST_P(FeedBadSampleTest, SameBytesForAnyWorkerCountDepthAndRestartPoint) {
  FeedSpec spec = Masked(OnBadSample::kZero, 0);
  spec.order = Order::kShuffle;
  spec.transforms.emplace_back(RandomResizedCrop{3, 4, 0.2, 1, 0.5, 2});
  CheckSameBytes(spec, std::make_shared<MaskedDataset>(50, kBad));
}

// Each rank by itself: one whose samples are all bad in some batch gives as many batches as the other.
TEST_P(FeedBadSampleTest, RanksGetEquallyManyBatchesWhateverIsBad) {
  std::map<uint64_t, size_t> bad;
  for (uint64_t id = 32; id < 40; ++id) bad[id] = 0;  // rank 0's third batch of four
  for (uint64_t id = 48; id < 56; ++id) bad[id] = 1;  // and its last
  std::vector<std::vector<uint32_t>> sizes;
  for (const uint32_t rank : {0U, 1U}) {
    FeedSpec spec = Masked(OnBadSample::kSkip, 1);
    spec.rank = rank;
    spec.world_size = 2;
    const auto feed = Make(spec, std::make_shared<MaskedDataset>(64, bad));
    AttachedClient client(*feed, Sampler::Start{});
    sizes.emplace_back();
    while (const auto batch = client.Next()) {
      sizes.back().push_back(batch->samples);
      EXPECT_EQ((batch->flags & kFlagLastOfEpoch) != 0, sizes.back().size() == 4);
      client.Release(*batch, *feed);
    }
  }
  EXPECT_THAT(sizes, ElementsAre(ElementsAre(8, 8, 0, 0), ElementsAre(8, 8, 8, 8)));
}

PF_OVER_ALL_PRODUCERS(FeedBadSampleTest);
PF_OVER_DATASETS(TransformedBadSampleTest);

}  // namespace
}  // namespace pinfeed
