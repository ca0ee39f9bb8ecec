// SPDX-License-Identifier: Apache-2.0
// Long because: all of them fill one cache, with the order of feeds or without.
#include "server/cache/decoded_cache.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <list>
#include <thread>
#include <unordered_map>
#include <vector>

#include "server/order/sampler.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr ImageSize kSize{64, 21};  // with the slack a page
constexpr uint64_t kImageBytes = 4096;
constexpr uid_t kAlice = 1000;
constexpr uid_t kBob = 1001;

FileVersion File(uint64_t number) {
  return {1, number, 100, 5, 5};
}

class DecodedCacheTest : public ::testing::Test {
 protected:
  DecodedCache::Options Options(uint64_t images, uint64_t user_images = UINT32_MAX) {
    return {
        .capacity_bytes = images * kImageBytes, .user_bytes = user_images * kImageBytes, .ledger = &ledger_};
  }
  // Whether it is kept. The pixels tell the number of the image.
  static bool Put(DecodedCache& cache, uint64_t number, const DecodedCache::Use& use,
                  const DecodedCache::Head& head) {
    const auto image = cache.MakeRoom(File(number), kSize, use);
    if (image == nullptr) return false;
    std::memcpy(image->pixels(), &number, sizeof number);
    cache.Add(File(number), head, use, image);
    return true;
  }
  // Whether it was a hit. If not, it is put there if the cache wants it.
  bool Load(DecodedCache& cache, uint64_t number, const DecodedCache::Use& use) const {
    if (cache.Find(File(number), head_, use) != nullptr) return true;
    Put(cache, number, use, head_);
    return false;
  }
  static uint64_t NumberIn(const DecodedCache::Image& image) {
    uint64_t number = UINT64_MAX;
    if (image != nullptr) std::memcpy(&number, image->pixels(), sizeof number);
    return number;
  }

  HostMemoryLedger ledger_{[](uint64_t /*enough*/) {
    return Result<HostMemory>(HostMemory{UINT64_MAX / 2, UINT64_MAX / 2, "all", "all"});
  }};
  const DecodedCache::Head head_ = std::make_shared<const std::string>("a head");
};

TEST_F(DecodedCacheTest, FindsWhatWasAddedForTheSameFileAndHead) {
  DecodedCache cache(Options(100));
  const DecodedCache::Use use{cache.UsesOf("set"), 7, kAlice};
  EXPECT_EQ(cache.Find(File(7), head_, use), nullptr);
  ASSERT_TRUE(Put(cache, 7, use, head_));
  EXPECT_EQ(NumberIn(cache.Find(File(7), head_, use)), 7U);
  EXPECT_EQ(NumberIn(cache.Find(File(7), std::make_shared<const std::string>("a head"), use)), 7U)
      << "another feed's text";
  EXPECT_EQ(cache.Find(File(7), std::make_shared<const std::string>("another"), use), nullptr);
  EXPECT_EQ(cache.Find(File(8), head_, use), nullptr);
  const DecodedCache::Counts counts = cache.counts();
  EXPECT_EQ(counts.hits, 2U);
  EXPECT_EQ(counts.misses, 3U);
  EXPECT_EQ(counts.entries, 1U);
  EXPECT_EQ(cache.budget().used_bytes(), kImageBytes);
}

TEST_F(DecodedCacheTest, AnyChangeOfTheFileIsAnotherFile) {
  DecodedCache cache(Options(100));
  const DecodedCache::Use use{cache.UsesOf("set"), 7, kAlice};
  const std::vector<void (*)(FileVersion&)> changes = {
      [](FileVersion& file) { ++file.size; }, [](FileVersion& file) { ++file.modified_ns; },
      [](FileVersion& file) { ++file.changed_ns; }, [](FileVersion& file) { ++file.device; },
      [](FileVersion& file) { ++file.inode; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    ASSERT_TRUE(Put(cache, 7, use, head_));
    FileVersion changed = File(7);
    changes[i](changed);
    EXPECT_EQ(cache.Find(changed, head_, use), nullptr) << i;
    const bool same_inode = i < 3;
    EXPECT_EQ(cache.Find(File(7), head_, use) == nullptr, same_inode)
        << "the old contents are dropped: " << i;
  }
}

// Two writes within one tick of the file system's clock leave the same times.
TEST_F(DecodedCacheTest, AFileThatWasJustChangedIsNotKept) {
  DecodedCache cache(Options(100));
  const DecodedCache::Use use{cache.UsesOf("set"), 7, kAlice};
  constexpr int64_t now = 1'000'000'000'000'000'000;
  const auto changed = [&](int64_t ns) { return FileVersion{1, 7, 100, 5, ns, now}; };
  EXPECT_EQ(cache.MakeRoom(changed(now), kSize, use), nullptr);
  EXPECT_EQ(cache.MakeRoom(changed(now + 3'600'000'000'000), kSize, use), nullptr) << "a clock ahead of ours";
  EXPECT_NE(cache.MakeRoom(changed(now - 10'000'000'000), kSize, use), nullptr);
}

TEST_F(DecodedCacheTest, MemoryIsBoundedAndAllOfItGoesBack) {
  DecodedCache cache(Options(50));
  const DecodedCache::Use use{cache.UsesOf("set"), 7, kAlice};
  for (uint64_t i = 0; i < 200; ++i) {
    Put(cache, i, use, head_);
    ASSERT_LE(cache.budget().used_bytes(), 50 * kImageBytes);
  }
  EXPECT_EQ(cache.counts().entries, 50U);
  const DecodedCache::Image held = cache.Find(File(3), head_, use);
  ASSERT_NE(held, nullptr);
  const DecodedCache::Dropped dropped = cache.Drop();
  EXPECT_EQ(dropped.entries, 50U);
  EXPECT_EQ(dropped.bytes, 50 * kImageBytes);
  EXPECT_EQ(cache.counts().entries, 0U);
  EXPECT_EQ(cache.budget().used_bytes(), kImageBytes) << "a worker still reads it";
  EXPECT_EQ(NumberIn(held), 3U);
  EXPECT_EQ(cache.Find(File(3), head_, use), nullptr);
  EXPECT_TRUE(Put(cache, 3, use, head_));
}

TEST_F(DecodedCacheTest, OneUserCannotTakeTheCacheFromAnother) {
  DecodedCache cache(Options(100, 60));
  const DecodedCache::Use alice{cache.UsesOf("a"), 1, kAlice};
  const DecodedCache::Use bob{cache.UsesOf("b"), 1, kBob};
  for (uint64_t i = 0; i < 100; ++i) Put(cache, i, alice, head_);
  for (uint64_t i = 100; i < 200; ++i) Put(cache, i, bob, head_);
  const auto used = cache.budget().used_by_user();
  EXPECT_EQ(used.at(kAlice), 60 * kImageBytes);
  EXPECT_EQ(used.at(kBob), 40 * kImageBytes);
  // An image that one has put there serves both.
  EXPECT_EQ(NumberIn(cache.Find(File(0), head_, bob)), 0U);
}

TEST_F(DecodedCacheTest, AUserAtTheirLimitEvictsOnlyTheirOwn) {
  DecodedCache cache(Options(100, 50));
  const FeedSpec spec{.batch_size = 1, .order = Order::kSequential};
  const auto uses = cache.UsesOf("a");
  const auto feed = std::make_shared<FeedUses>(spec, 1000);
  uses->Add(feed);
  const auto others = cache.UsesOf("b");  // without feeds: they would be evicted first
  for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(Put(cache, 1000 + i, {others, i, kBob}, head_));
  feed->At({0, 0});
  for (uint64_t i = 0; i < 50; ++i) ASSERT_TRUE(Put(cache, 500 + i, {uses, 500 + i, kAlice}, head_));
  for (uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(Put(cache, i, {uses, i, kAlice}, head_)) << i;
  EXPECT_EQ(cache.counts().evictions, 30U);
  EXPECT_EQ(cache.budget().used_by_user().at(kBob), 40 * kImageBytes);
  EXPECT_EQ(cache.budget().used_by_user().at(kAlice), 50 * kImageBytes);
}

TEST_F(DecodedCacheTest, WhatIsUsedLaterThanAllElseIsNotKept) {
  DecodedCache cache(Options(10));
  const FeedSpec spec{.batch_size = 1, .order = Order::kSequential};
  const auto uses = cache.UsesOf("a");
  const auto feed = std::make_shared<FeedUses>(spec, 1000);
  uses->Add(feed);
  feed->At({0, 0});
  for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(Put(cache, i, {uses, i, kAlice}, head_));
  EXPECT_FALSE(Put(cache, 900, {uses, 900, kAlice}, head_));
  EXPECT_EQ(cache.counts().evictions, 0U);
  feed->At({0, 800});
  EXPECT_TRUE(Put(cache, 900, {uses, 900, kAlice}, head_)) << "the others are behind it now";
  EXPECT_EQ(cache.counts().evictions, 1U);
}

TEST_F(DecodedCacheTest, WhatAFeedWillUseStaysIfToldSo) {
  DecodedCache cache(Options(10));
  FeedSpec spec;
  spec.batch_size = 1;
  const auto set = cache.UsesOf("set");
  const auto feed = std::make_shared<FeedUses>(spec, 100);
  set->Add(feed);
  feed->At({0, 0});
  for (uint64_t i = 50; i < 60; ++i) ASSERT_TRUE(Put(cache, i, {set, i, kAlice}, head_));
  const DecodedCache::Use soon{set, 1, kAlice};
  EXPECT_EQ(cache.MakeRoom(File(1), kSize, soon, DecodedCache::Evict::kUnused), nullptr);
  EXPECT_EQ(cache.counts().entries, 10U);
  EXPECT_NE(cache.MakeRoom(File(1), kSize, soon, DecodedCache::Evict::kLater), nullptr);
  EXPECT_EQ(cache.counts().evictions, 1U);
  // Of a dataset that no feed uses any more.
  ASSERT_TRUE(Put(cache, 200, {cache.UsesOf("other"), 7, kAlice}, head_));
  EXPECT_EQ(cache.counts().evictions, 1U) << "the memory was not added";
  EXPECT_NE(cache.MakeRoom(File(1), kSize, soon, DecodedCache::Evict::kUnused), nullptr);
  EXPECT_EQ(cache.counts().evictions, 2U);
  EXPECT_FALSE(cache.Has(File(200), head_));
}

TEST_F(DecodedCacheTest, OneImageTakesOnlyAPartOfTheCache) {
  DecodedCache cache(Options(64));
  const DecodedCache::Use use{cache.UsesOf("set"), 7, kAlice};
  EXPECT_EQ(cache.MakeRoom(File(1), {200, 200}, use), nullptr);
  EXPECT_NE(cache.MakeRoom(File(1), {100, 100}, use), nullptr);
}

TEST_F(DecodedCacheTest, WhereTheHostLacksMemoryOthersGiveWay) {
  uint64_t available = uint64_t{1} << 30;
  HostMemoryLedger ledger([&](uint64_t /*enough*/) {
    return Result<HostMemory>(HostMemory{UINT64_MAX / 2, available, "all", "all"});
  });
  DecodedCache::Options options = Options(1 << 20);
  options.ledger = &ledger;
  DecodedCache cache(options);
  const DecodedCache::Use use{cache.UsesOf("set"), 7, kAlice};
  uint64_t kept = 0;
  while (kept < 4096 && Put(cache, kept, use, head_)) ++kept;  // the first promise of 16 MiB
  ASSERT_EQ(kept, 4096U);
  available = 0;
  EXPECT_FALSE(Put(cache, kept, use, head_)) << "none of them is used later";
  EXPECT_EQ(cache.counts().entries, kept);
  const FeedSpec spec{.batch_size = 1, .order = Order::kSequential};
  const auto known = cache.UsesOf("other");
  known->Add(std::make_shared<FeedUses>(spec, 1000));
  EXPECT_FALSE(Put(cache, kept, {known, 1, kAlice}, head_)) << "what gave way is not enough";
  EXPECT_LT(cache.counts().entries, kept);
  available = (uint64_t{16} << 20) + kImageBytes;  // the daemon's headroom and one image
  EXPECT_TRUE(Put(cache, kept, {known, 1, kAlice}, head_));
}

TEST_F(DecodedCacheTest, ImagesGiveWayToWhatASampleTakes) {
  constexpr uint64_t kHost = uint64_t{170} << 20;
  const DecodedCache* filled = nullptr;
  HostMemoryLedger ledger([&](uint64_t /*enough*/) {
    const uint64_t used = filled != nullptr ? filled->budget().used_bytes() : 0;
    return Result<HostMemory>(HostMemory{kHost, kHost - used, "all", "all"});
  });
  DecodedCache::Options options = Options(1 << 20);
  options.ledger = &ledger;
  DecodedCache cache(options);
  filled = &cache;
  const DecodedCache::Use use{cache.UsesOf("set"), 7, kAlice};
  constexpr uint64_t kImages = 30'000;
  for (uint64_t i = 0; i < kImages; ++i) ASSERT_TRUE(Put(cache, i, use, head_));
  EXPECT_OK(ledger.ReserveForSample(uint64_t{65} << 20));
  const uint64_t left = cache.counts().entries;  // 20 MiB were lacking
  EXPECT_LT(left, kImages - (uint64_t{20} << 20) / kImageBytes);
  EXPECT_GT(left, kImages - (uint64_t{40} << 20) / kImageBytes);
  EXPECT_FALSE(ledger.ReserveForSample(kHost).ok());
  EXPECT_EQ(cache.counts().entries, left) << "all would not have been enough";
  // Ahead of the next image, memory is promised for more.
  ASSERT_TRUE(Put(cache, kImages, use, head_));
  const uint64_t promised = ledger.reserved_bytes();
  ASSERT_GT(promised, kImageBytes);
  const uint64_t free = kHost - cache.budget().used_bytes();
  EXPECT_OK(ledger.Reserve(free - (uint64_t{16} << 20)));  // the daemon's headroom
  EXPECT_EQ(cache.counts().entries, left + 1) << "what is promised only is given back first";
  // What is promised is nothing that a sample would have.
  ASSERT_TRUE(Put(cache, kImages + 1, use, head_));
  ASSERT_GT(ledger.reserved_bytes(), kImageBytes);
  const uint64_t rest = kHost - cache.budget().used_bytes() - (uint64_t{8} << 20);
  EXPECT_OK(ledger.ReserveForSample(rest + 1));
}

// Goes through shuffled epochs of a dataset, and returns the share of hits from the third epoch on.
class Epochs {
 public:
  static constexpr uint64_t kSamples = 1000;

  Epochs() {
    spec_.batch_size = 20;
    spec_.order = Order::kShuffle;
    spec_.seed = 11;
  }
  // `use`: is told the epoch, the position behind the batch, and a sample. Returns whether it was a hit.
  template <typename Use>
  double Hits(const Use& use) const {
    const auto sampler = Sampler::Create(spec_, kSamples);
    uint64_t hits = 0;
    uint64_t all = 0;
    for (uint64_t epoch = 0; epoch < 8; ++epoch) {
      for (uint64_t batch = 0; batch < sampler->batches_per_epoch(); ++batch) {
        const BatchPlan plan = sampler->Plan(epoch, batch);
        const BatchSamples ids = sampler->SamplesOf(plan);
        for (uint32_t i = 0; i < plan.samples; ++i) {
          const bool hit = use(NextUse::Place{epoch, plan.next_position}, ids[i]);
          hits += epoch >= 2 && hit ? 1 : 0;
          all += epoch >= 2 ? 1 : 0;
        }
      }
    }
    return static_cast<double>(hits) / static_cast<double>(all);
  }
  const FeedSpec& spec() const { return spec_; }

 private:
  FeedSpec spec_;
};

double HitsOfLru(const Epochs& epochs, size_t capacity) {
  std::list<uint64_t> order;
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> entries;
  return epochs.Hits([&](const NextUse::Place& /*place*/, uint64_t sample) {
    const auto found = entries.find(sample);
    const bool hit = found != entries.end();
    if (hit) {
      order.erase(found->second);
    } else if (entries.size() == capacity) {
      entries.erase(order.back());
      order.pop_back();
    }
    order.push_front(sample);
    entries[sample] = order.begin();
    return hit;
  });
}

// Each sample is used once an epoch, so it has to stay in the cache over the epoch's end to be hit. The best
// that any cache can do is therefore the share of the dataset that fits: a half.
TEST_F(DecodedCacheTest, KnownOrderHitsAsMuchAsIsPossibleAndRecentUseDoesNot) {
  const Epochs epochs;
  DecodedCache cache(Options(Epochs::kSamples / 2));
  const auto uses = cache.UsesOf("set");
  const auto feed = std::make_shared<FeedUses>(epochs.spec(), Epochs::kSamples);
  uses->Add(feed);
  const double ours = epochs.Hits([&](const NextUse::Place& place, uint64_t sample) {
    feed->At(place);
    return Load(cache, sample, {uses, sample, kAlice});
  });
  const double lru = HitsOfLru(epochs, Epochs::kSamples / 2);
  std::printf("known order %.3f, recent use %.3f\n", ours, lru);
  EXPECT_GT(ours, 0.49);
  EXPECT_LE(ours, 0.5);
  EXPECT_LT(lru, 0.2);
}

// Of two jobs half an epoch apart, each uses soon what the other has used. A fixed half of the dataset would
// be hit half of the time; this is what the order is good for beyond that.
TEST_F(DecodedCacheTest, KnownOrdersOfTwoJobsHitMoreThanAFixedPart) {
  FeedSpec specs[2];
  std::vector<Sampler> samplers;
  DecodedCache cache(Options(Epochs::kSamples / 2));
  const auto uses = cache.UsesOf("set");
  std::vector<std::shared_ptr<FeedUses>> feeds;
  for (uint64_t job = 0; job < 2; ++job) {
    specs[job].batch_size = 20;
    specs[job].order = Order::kShuffle;
    specs[job].seed = job;
    samplers.push_back(Sampler::Create(specs[job], Epochs::kSamples).value());
    feeds.push_back(std::make_shared<FeedUses>(specs[job], Epochs::kSamples));
    uses->Add(feeds.back());
  }
  const uint64_t batches = samplers[0].batches_per_epoch();
  auto now = FeedUses::Clock::time_point();
  uint64_t hits = 0;
  uint64_t all = 0;
  for (uint64_t step = 0; step < 8 * batches; ++step, now += std::chrono::milliseconds(20)) {
    for (uint64_t job = 0; job < 2; ++job) {
      if (job == 1 && step < batches / 2) continue;
      const uint64_t batch = job == 0 ? step : step - batches / 2;
      const BatchPlan plan = samplers[job].Plan(batch / batches, batch % batches);
      feeds[job]->At({plan.epoch, plan.next_position}, now);
      const BatchSamples ids = samplers[job].SamplesOf(plan);
      for (uint32_t i = 0; i < plan.samples; ++i) {
        const bool hit = Load(cache, ids[i], {uses, ids[i], kAlice});
        hits += step >= 2 * batches && hit ? 1 : 0;
        all += step >= 2 * batches ? 1 : 0;
      }
    }
  }
  const double ours = static_cast<double>(hits) / static_cast<double>(all);
  std::printf("two jobs %.3f\n", ours);
  EXPECT_GT(ours, 0.55);
}

// A new job for each epoch: nothing is known of the next, and a part of the dataset stays.
TEST_F(DecodedCacheTest, JobsOfOneEpochFindAPartOfTheDataset) {
  const Epochs epochs;
  DecodedCache cache(Options(Epochs::kSamples / 2));
  const auto uses = cache.UsesOf("set");
  const double ours = epochs.Hits([&](const NextUse::Place& /*place*/, uint64_t sample) {
    return Load(cache, sample, {uses, sample, kAlice});
  });
  EXPECT_GE(ours, 0.49);
}

TEST_F(DecodedCacheTest, ThreadsFindOnlyTheImageOfTheirFile) {
  DecodedCache cache(Options(64));
  const FeedSpec spec{.batch_size = 1, .order = Order::kShuffle};
  const auto uses = cache.UsesOf("set");
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      FeedSpec own = spec;
      own.seed = t;
      const auto feed = std::make_shared<FeedUses>(own, 200);
      uses->Add(feed);
      for (uint64_t i = 0; i < 4000; ++i) {
        feed->At({i / 200, i % 200});
        const uint64_t number = (i * 31 + t * 7) % 200;
        const DecodedCache::Use use{uses, number, t % 2 == 0 ? kAlice : kBob};
        const DecodedCache::Image image = cache.Find(File(number), head_, use);
        if (image == nullptr) {
          Put(cache, number, use, head_);
        } else if (NumberIn(image) != number) {
          ++wrong;
        }
        if (t == 0 && i % 1000 == 999) cache.Drop();
      }
      uses->Remove(*feed);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(cache.counts().hits, 0U);
  EXPECT_GT(cache.counts().evictions, 0U);
  EXPECT_EQ(cache.budget().used_bytes(), cache.counts().entries * kImageBytes);
}

}  // namespace
}  // namespace pinfeed
