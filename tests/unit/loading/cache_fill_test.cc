// SPDX-License-Identifier: Apache-2.0
#include "server/loading/cache_fill.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "server/cache/decoded_cache.h"
#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

constexpr uint64_t kImageBytes = 4096;  // of an image in the cache
constexpr uid_t kUser = 1000;

class PictureFile final : public RandomAccessFile {
 public:
  PictureFile(uint64_t id, std::vector<std::byte> bytes)
      : RandomAccessFile("/pictures/" + std::to_string(id), bytes.size()),
        id_(id),
        bytes_(std::move(bytes)) {}
  std::optional<FileVersion> version() const override { return FileVersion{1, id_, bytes_.size(), 5, 5}; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return OkStatus();
  }

 private:
  const uint64_t id_;
  const std::vector<std::byte> bytes_;
};

// Pictures in files, which records when they are opened.
class PictureDataset final : public Dataset {
 public:
  explicit PictureDataset(uint64_t samples) {
    info_.format = "pictures";
    info_.path = "/pictures";
    info_.samples = samples;
    info_.fingerprint = "0123456789abcdef";
    info_.fields = {EncodedField("image")};
  }

  std::function<void(uint64_t)> before_open;
  std::set<uint64_t> missing;
  std::set<uint64_t> damaged;

  const DatasetInfo& info() const override { return info_; }
  Status ReadBytes(uint64_t id, size_t, std::vector<std::byte>& out) const override {
    out = Picture(id);
    return OkStatus();
  }
  Result<std::unique_ptr<const RandomAccessFile>> OpenImage(uint64_t id, size_t) const override {
    {
      const MutexLock lock(mutex_);
      opened_.push_back(id);
    }
    if (before_open) before_open(id);
    if (missing.contains(id)) return NotFound("open " + Describe(id));
    return std::make_unique<PictureFile>(id, Picture(id));
  }
  std::string Describe(uint64_t id) const override { return "/pictures/" + std::to_string(id); }

  std::vector<uint64_t> opened() const {
    const MutexLock lock(mutex_);
    return opened_;
  }

 private:
  std::vector<std::byte> Picture(uint64_t id) const {
    std::vector<std::byte> file = MakeJpeg({.width = 64, .height = 21}, static_cast<uint32_t>(id));
    if (damaged.contains(id)) file.resize(100);
    return file;
  }

  DatasetInfo info_;
  mutable Mutex mutex_;
  mutable std::vector<uint64_t> opened_ PF_GUARDED_BY(mutex_);
};

class CacheFillTest : public ::testing::Test {
 protected:
  ~CacheFillTest() override {
    readers_.Stop();
    workers_.Stop();
  }

  // Of a cache for so many images.
  void Make(uint64_t samples, uint64_t images, Order order = Order::kShuffle, uint64_t epochs = 0) {
    dataset_ = std::make_shared<PictureDataset>(samples);
    cache_.emplace(DecodedCache::Options{.capacity_bytes = images * kImageBytes, .ledger = &ledger_});
    spec_.batch_size = kBatch;
    spec_.order = order;
    spec_.seed = 3;
    spec_.epochs = epochs;
    spec_.transforms = {RandomResizedCrop{16, 16}};
    sampler_.emplace(Sampler::Create(spec_, samples).value());
    loader_ = SampleLoader::Create(dataset_, spec_, PixelOpsAt::kWorker, {&*cache_, kUser}).value();
    fill_ = std::make_shared<CacheFill>(loader_, *sampler_, spec_, workers_, readers_);
  }
  // A worker begins with the sample at this place of the order.
  void Begin(uint64_t place) {
    const uint64_t batches = sampler_->batches_per_epoch();
    const BatchPlan plan = sampler_->Plan(place / kBatch / batches, place / kBatch % batches);
    loader_->cached_head()->At({plan.epoch, plan.next_position});
    fill_->Begin(plan, static_cast<uint32_t>(place % kBatch), share_);
  }
  // No task is under way.
  void AwaitRest() const {
    while (fill_.use_count() > 1) std::this_thread::yield();
  }
  // The ids of `count` samples from a place of the first epoch on.
  std::vector<uint64_t> Ids(uint64_t place, uint64_t count) const {
    std::vector<uint64_t> ids;
    for (; ids.size() < count; ++place)
      ids.push_back(sampler_->SamplesOf(sampler_->Plan(0, place / kBatch))[place % kBatch]);
    return ids;
  }
  bool InCache(uint64_t id) const {
    return loader_->cached_head()->Has(*dataset_->OpenImage(id, 0).value()->version());
  }
  static std::vector<std::byte> Load(const SampleLoader& loader, uint64_t id) {
    std::vector<std::byte> image(loader.outputs()[0].SampleBytes().value());
    SampleScratch scratch;
    SampleTimes times;
    std::vector<std::span<std::byte>> places{image};
    EXPECT_OK(loader.Load({id, 0}, places, scratch, times));
    return image;
  }

  static constexpr uint32_t kBatch = 5;
  HostMemoryLedger ledger_{[](uint64_t /*enough*/) {
    return Result<HostMemory>(HostMemory{UINT64_MAX / 2, UINT64_MAX / 2, "all", "all"});
  }};
  const FeedShare share_{kUser, 7};
  std::shared_ptr<PictureDataset> dataset_;
  std::optional<DecodedCache> cache_;
  FeedSpec spec_;
  WorkerPool workers_{3};
  WorkerPool readers_{2, UINT32_MAX, PoolKind::kReaders};
  std::optional<Sampler> sampler_;
  std::shared_ptr<const SampleLoader> loader_;
  std::shared_ptr<CacheFill> fill_;
};

// The slots are full, and their trainer takes nothing.
TEST_F(CacheFillTest, IdleWorkersFillTheCacheInTheOrderOfUse) {
  Make(200, 1000);
  workers_.Start();
  Begin(9);
  AwaitRest();
  const DecodedCache::Counts counts = cache_->counts();
  // All but what the feed has come to. A few samples come again within the next 200.
  EXPECT_GE(counts.entries, 190U);
  EXPECT_GE(counts.made_ahead, counts.entries);
  EXPECT_EQ(counts.misses, 0U) << "nobody has looked for them";
  EXPECT_EQ(cache_->budget().used_by_user().at(kUser), counts.entries * kImageBytes);
  std::vector<uint64_t> opened = dataset_->opened();
  ASSERT_GE(opened.size(), 190U);
  opened.resize(190);
  EXPECT_EQ(opened, Ids(10, 190));
}

TEST_F(CacheFillTest, TheSameBytesComeFromIt) {
  Make(40, 1000);
  workers_.Start();
  Begin(0);
  AwaitRest();
  const auto plain = SampleLoader::Create(dataset_, spec_).value();
  for (uint64_t id = 0; id < 40; ++id) EXPECT_EQ(Load(*loader_, id), Load(*plain, id)) << id;
  EXPECT_GE(cache_->counts().hits, 39U);
}

TEST_F(CacheFillTest, NothingIsDecodedWhileWorkersHaveBatches) {
  Make(200, 1000);
  class Batch final : public FillTask {
   public:
    Batch(std::latch& begun, std::latch& go)
        : FillTask(std::make_shared<FeedShare>(), 3, 1), begun_(begun), go_(go) {}
    void Run(uint32_t, uint32_t, SampleScratch&) override {
      begun_.count_down();
      go_.wait();
    }
    void Done() override {}

   private:
    std::latch& begun_;
    std::latch& go_;
  };
  std::latch begun(3);
  std::latch go(1);
  workers_.Submit(std::make_shared<Batch>(begun, go));
  workers_.Start();
  begun.wait();
  Begin(0);
  while (readers_.progress() == 0) std::this_thread::yield();
  EXPECT_EQ(cache_->counts().entries, 0U);
  EXPECT_LE(dataset_->opened().size(), CacheFill::kMaxFiles) << "no more is held";
  go.count_down();
  AwaitRest();
  EXPECT_EQ(cache_->counts().entries, 199U);
  workers_.Stop();  // they use the latches
}

// A feed at rest costs nothing, and one that goes on looks at few images that it cannot keep.
TEST_F(CacheFillTest, AFullCacheEndsIt) {
  constexpr uint64_t kRoom = 64;
  Make(1000, kRoom);
  workers_.Start();
  Begin(0);
  AwaitRest();
  const DecodedCache::Counts full = cache_->counts();
  EXPECT_EQ(full.entries, kRoom);
  EXPECT_EQ(full.made_ahead, kRoom);
  EXPECT_EQ(full.evictions, 0U);
  // All of the first tasks. Of the last one, those that the threads come to first.
  for (const uint64_t id : Ids(1, CacheFill::kRefusals + CacheFill::kMaxFiles)) EXPECT_TRUE(InCache(id));
  const size_t opened = dataset_->opened().size();
  EXPECT_LE(opened, 2 * kRoom + CacheFill::kMaxFiles);
  for (uint64_t place = 1; place < CacheFill::kMinRest; ++place) Begin(place);
  EXPECT_EQ(fill_.use_count(), 1);
  EXPECT_EQ(dataset_->opened().size(), opened);
}

// Each image that gave way early would have to be decoded once more.
TEST_F(CacheFillTest, NoImageGivesWayThatAFeedWillUse) {
  constexpr uint64_t kRoom = 320;
  Make(1000, kRoom);
  workers_.Start();
  for (uint64_t place = 0; place < 2000; ++place) {
    Begin(place);  // without the cache, so that only the fill changes it
    if (place % 20 == 0) AwaitRest();
  }
  AwaitRest();
  EXPECT_EQ(cache_->counts().made_ahead, kRoom);
  EXPECT_EQ(cache_->counts().evictions, 0U);
  EXPECT_LE(dataset_->opened().size(), 3 * kRoom);
}

TEST_F(CacheFillTest, ImagesOfEndedFeedsGiveWay) {
  constexpr uint64_t kRoom = 100;
  Make(200, kRoom);
  const DecodedCache::Head head = std::make_shared<const std::string>("another");
  const auto uses = cache_->UsesOf("an ended feed");
  for (uint64_t i = 0; i < kRoom; ++i) {
    const FileVersion file{2, i, 1, 5, 5};
    const auto image = cache_->MakeRoom(file, {64, 21}, {uses, i, kUser});
    ASSERT_NE(image, nullptr);
    cache_->Add(file, head, {uses, i, kUser}, image);
  }
  workers_.Start();
  Begin(0);
  AwaitRest();
  EXPECT_EQ(cache_->counts().entries, kRoom);
  EXPECT_GE(cache_->counts().evictions, kRoom / 2) << "the last ones are not found among 16 at random";
}

TEST_F(CacheFillTest, ACacheWithAllOfTheEpochIsLeftAlone) {
  Make(1000, 2000);
  workers_.Start();
  Begin(0);
  AwaitRest();
  for (uint64_t place = 1; place < 4000; ++place) Begin(place);
  AwaitRest();
  const size_t opened = dataset_->opened().size();
  EXPECT_GE(cache_->counts().made_ahead, 999U);
  for (uint64_t place = 4000; place < 4000 + 2 * CacheFill::kMaxRest; ++place) Begin(place);
  AwaitRest();
  EXPECT_LE(dataset_->opened().size() - opened, CacheFill::kMaxRest / 8);
}

TEST_F(CacheFillTest, AUserKeepsToTheirShare) {
  Make(200, 1000);
  fill_.reset();
  loader_.reset();
  cache_.emplace(DecodedCache::Options{
      .capacity_bytes = 1000 * kImageBytes, .user_bytes = 50 * kImageBytes, .ledger = &ledger_});
  loader_ = SampleLoader::Create(dataset_, spec_, PixelOpsAt::kWorker, {&*cache_, kUser}).value();
  fill_ = std::make_shared<CacheFill>(loader_, *sampler_, spec_, workers_, readers_);
  workers_.Start();
  Begin(0);
  AwaitRest();
  EXPECT_EQ(cache_->counts().entries, 50U);
}

// What cannot be used is the feed's to report. It does not end the filling, and is not decoded again and
// again.
TEST_F(CacheFillTest, BadImagesAreLeftToTheFeed) {
  Make(200, 1000);
  dataset_->missing = {Ids(20, 1)[0], Ids(21, 1)[0]};
  dataset_->damaged = {Ids(40, 1)[0], Ids(90, 1)[0], Ids(91, 1)[0]};
  workers_.Start();
  Begin(0);
  AwaitRest();
  EXPECT_EQ(cache_->counts().made_ahead, 194U);
  EXPECT_EQ(cache_->counts().entries, 194U);
  SampleScratch scratch;
  SampleTimes times;
  std::vector<std::byte> image(loader_->outputs()[0].SampleBytes().value());
  std::vector<std::span<std::byte>> places{image};
  EXPECT_FALSE(loader_->Load({*dataset_->damaged.begin(), 0}, places, scratch, times).ok());
}

TEST_F(CacheFillTest, ADatasetOfBadImagesEndsIt) {
  Make(100, 1000);
  for (uint64_t id = 0; id < 100; ++id) dataset_->damaged.insert(id);
  workers_.Start();
  Begin(0);
  AwaitRest();
  EXPECT_LE(dataset_->opened().size(), CacheFill::kRefusals);
}

// Storage that hangs holds one reader, no worker, and not the feed's end.
TEST_F(CacheFillTest, AReadThatHangsHoldsNoWorker) {
  Make(200, 1000);
  std::latch hangs(1);
  std::latch go(1);
  dataset_->before_open = [&, first = true](uint64_t) mutable {
    if (!std::exchange(first, false)) return;
    hangs.count_down();
    go.wait();
  };
  workers_.Start();
  Begin(0);
  hangs.wait();
  for (uint64_t place = 1; place < 100; ++place) Begin(place);
  EXPECT_EQ(workers_.busy(), 0U);
  EXPECT_EQ(readers_.busy(), 1U);
  fill_->Stop();
  go.count_down();
  AwaitRest();
  EXPECT_EQ(cache_->counts().entries, 0U);
  EXPECT_EQ(dataset_->opened().size(), 1U);
  readers_.Stop();  // they use the latches
}

TEST_F(CacheFillTest, StopDropsWhatIsReadAndNotDecoded) {
  Make(200, 1000);
  Begin(0);  // the workers have not begun
  while (readers_.progress() == 0) std::this_thread::yield();
  fill_->Stop();
  AwaitRest();
  workers_.Start();
  Begin(50);
  AwaitRest();
  EXPECT_EQ(cache_->counts().entries, 0U);
}

TEST_F(CacheFillTest, StopWhileImagesAreDecodedEndsIt) {
  for (int round = 0; round < 20; ++round) {
    fill_.reset();
    loader_.reset();
    Make(500, 1000);
    workers_.Start();
    Begin(0);
    while (cache_->counts().entries < 20) std::this_thread::yield();
    fill_->Stop();
    AwaitRest();
    const uint64_t entries = cache_->counts().entries;
    Begin(300);
    EXPECT_EQ(fill_.use_count(), 1);
    EXPECT_EQ(cache_->counts().entries, entries);
  }
}

TEST_F(CacheFillTest, TheLastEpochEndsIt) {
  Make(103, 1000, Order::kShuffle, 1);
  workers_.Start();
  Begin(100);
  AwaitRest();
  EXPECT_EQ(dataset_->opened(), Ids(101, 2));
  EXPECT_EQ(cache_->counts().entries, 2U);
}

}  // namespace
}  // namespace pinfeed
