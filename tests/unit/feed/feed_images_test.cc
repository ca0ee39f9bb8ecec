// SPDX-License-Identifier: Apache-2.0
// Feeds whose processes hand over images as files: what is in a batch when it is published.
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/transform_specs.h"
#include "tests/unit/feed/feed_processes_fixture.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

using ::testing::Each;

constexpr size_t kImages = 1;  // tensors
constexpr size_t kError = 2;
constexpr uint64_t kTableOffset = 64;
constexpr int64_t kFieldBytes = 1 << 15;
constexpr Sharing kSharings[] = {Sharing::kExclusive, Sharing::kBroadcast};

class FeedImagesTest : public FeedTest {
 protected:
  FeedImagesTest() : FeedTest(pinfeed::Producer::kNative) {}

  void Open(Sharing sharing) {
    FeedSpec spec = Spec(1);
    spec.sharing = sharing;
    spec.encoded_images = 4;
    spec.transforms = {pinfeed::Resize{16, 16}};
    spec.dataset.produced =
        ProducedDataset{"photos", 100, {{"batch", DType::kUint8, {kFieldBytes}}}, "", 0, 0};
    auto images = EncodedImages::Create(spec, {}).value();
    image_bytes_ = images->image_bytes();
    auto sampler = Sampler::Create(spec, 100).value();
    auto layout = BatchLayout::Create(TensorsOf(*spec.dataset.produced, images.get()), 1).value();
    const bool shared = spec.sharing != Sharing::kExclusive;
    auto arena = HostArena::Create(layout, 3, shared, pool_).value();
    std::unique_ptr<Arena> staging;
    if (shared) staging = HostArena::Create(layout, 3, false, pool_).value();
    filled_ = shared ? staging.get() : arena.get();
    auto producer = std::make_unique<ProcessBatchProducer>(1, spec, sampler, *workers_, std::move(staging),
                                                           nullptr, std::move(images));
    group_ = producer->processes();
    feed_ = feeds_.emplace_back(
        MakeOver(spec, std::move(producer), std::move(layout), sampler, std::move(arena)));
    client_.emplace(*feed_, Sampler::Start{});
    process_ = std::make_shared<PlayedProcess>();
    id_ = group_->Attach(process_, 100).value();
  }
  void Close() {
    client_.reset();
    feed_.reset();
    EndFeeds();
  }

  // Fills the next batch with files, and reports it. `count`: of the table's rows, if not those.
  void Fill(const std::vector<std::vector<std::byte>>& files, std::optional<uint64_t> count = {}) {
    std::optional<ProducerTask> task;
    WaitFor([&] { return (task = process_->Take()).has_value(); });
    std::byte* const field = filled_->FillAddress({task->slot, 0, 1, 0}, 0);
    std::memset(field, 0, kFieldBytes);
    std::memcpy(field + kImageTableAt, &kTableOffset, sizeof kTableOffset);
    EncodedImageRow head;
    head.sample = count.value_or(files.size());
    std::memcpy(field + kTableOffset, &head, sizeof head);
    uint64_t end = 1024;
    for (size_t i = 0; i < files.size(); ++i) {
      const EncodedImageRow row{10 + i, 0, EncodedImageRow::kFile, end, files[i].size()};
      std::memcpy(field + kTableOffset + (i + 1) * sizeof row, &row, sizeof row);
      std::ranges::copy(files[i], field + end);
      end += files[i].size();
    }
    ASSERT_OK(group_->OnDone(id_, task->task, OkStatus()));
  }
  static std::vector<std::byte> Photo(uint32_t seed) { return MakeJpeg({.width = 40, .height = 40}, seed); }
  std::vector<std::byte> Pixels(const BatchDescriptor& batch, size_t image) const {
    const auto all = client_->Tensor(batch, kImages).subspan(image * image_bytes_, image_bytes_);
    return {all.begin(), all.end()};
  }
  int ErrorCode(const BatchDescriptor& batch) const {
    return static_cast<int>(client_->Tensor(batch, kError).front());
  }
  std::string ErrorText(const BatchDescriptor& batch) const {
    return reinterpret_cast<const char*>(client_->Tensor(batch, kError).data()) + 1;
  }

  uint64_t image_bytes_ = 0;
  Arena* filled_ = nullptr;  // what processes fill: the feed's arena, or its staging memory
  std::shared_ptr<ProducerGroup> group_;
  std::shared_ptr<Feed> feed_;
  std::optional<AttachedClient> client_;
  std::shared_ptr<PlayedProcess> process_;
  ProducerGroup::ProducerId id_ = 0;
};

TEST_F(FeedImagesTest, ABatchIsPublishedWithItsPixels) {
  for (const Sharing sharing : kSharings) {
    Open(sharing);
    std::vector<std::byte> first;
    for (uint32_t round = 0; round < 6; ++round) {
      Fill({Photo(round), Photo(9), Photo(round)});
      const std::optional<BatchDescriptor> batch = client_->Next();
      ASSERT_TRUE(batch);
      EXPECT_EQ(ErrorCode(*batch), 0) << ErrorText(*batch);
      EXPECT_EQ(Pixels(*batch, 0), Pixels(*batch, 2));
      EXPECT_NE(Pixels(*batch, 0), Pixels(*batch, 1));
      if (round == 0) first = Pixels(*batch, 1);
      EXPECT_EQ(Pixels(*batch, 1), first);
      client_->Release(*batch, *feed_);
    }
    EXPECT_GT(feed_->producer().times().decode_ns, 0U);
    Close();
  }
}

TEST_F(FeedImagesTest, ABadImageIsToldInItsBatchOnly) {
  for (const Sharing sharing : kSharings) {
    Open(sharing);
    std::vector<std::byte> cut = Photo(1);
    cut.resize(cut.size() / 2);
    for (const bool bad : {true, false, true, false, false}) {
      Fill({Photo(2), bad ? cut : Photo(3), bad ? cut : Photo(4)});
      const std::optional<BatchDescriptor> batch = client_->Next();
      ASSERT_TRUE(batch);
      EXPECT_EQ(ErrorCode(*batch), bad ? static_cast<int>(Code::kDataLoss) : 0);
      EXPECT_THAT(ErrorText(*batch), HasSubstr(bad ? "sample 11" : ""));
      if (bad) {
        EXPECT_THAT(Pixels(*batch, 1), Each(std::byte{0}));
      }
      EXPECT_THAT(Pixels(*batch, 0), Contains(::testing::Ne(std::byte{0})));
      client_->Release(*batch, *feed_);
    }
    Close();
  }
}

TEST_F(FeedImagesTest, AnImpossibleTableIsToldInItsBatchOnly) {
  for (const Sharing sharing : kSharings) {
    Open(sharing);
    for (const uint64_t count : {uint64_t{5}, UINT64_MAX, uint64_t{2}, uint64_t{0}}) {
      Fill({Photo(2)}, count);  // with 2, a row of zeros
      const std::optional<BatchDescriptor> batch = client_->Next();
      ASSERT_TRUE(batch);
      const Code expected = count == 0 ? Code::kOk : count == 2 ? Code::kInternal : Code::kOutOfRange;
      EXPECT_EQ(ErrorCode(*batch), static_cast<int>(expected)) << ErrorText(*batch);
      client_->Release(*batch, *feed_);
    }
    Fill({Photo(2)});
    const std::optional<BatchDescriptor> good = client_->Next();
    ASSERT_TRUE(good);
    EXPECT_EQ(ErrorCode(*good), 0) << ErrorText(*good);
    client_->Release(*good, *feed_);
    Close();
  }
}

TEST_F(FeedImagesTest, AFeedEndsWhileImagesAreDecoded) {
  for (const Sharing sharing : kSharings) {
    Open(sharing);
    for (int i = 0; i < 3; ++i) Fill({Photo(1), Photo(2), Photo(3), Photo(4)});
    Close();
  }
}

}  // namespace
}  // namespace pinfeed
