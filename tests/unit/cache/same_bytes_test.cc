// SPDX-License-Identifier: Apache-2.0
// A feed gets the same bytes and errors with and without the cache: files of all kinds, whole and damaged, by
// transforms made at random.
#include <spng.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/dataset/selected_fields.h"
#include "server/loading/sample_loader.h"
#include "tests/support/transform_specs.h"
#include "tests/unit/dataset/open_local.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

constexpr uint64_t kSmallCache = uint64_t{1} << 20;

std::vector<std::byte> Jpeg(int width, int height, uint32_t seed,
                            const std::function<void(JpegOptions&)>& change = nullptr) {
  JpegOptions options{.width = width, .height = height};
  if (change) change(options);
  return MakeJpeg(options, seed);
}

std::vector<std::byte> Png(uint32_t width, uint32_t height, uint32_t seed) {
  std::vector<uint8_t> pixels(size_t{3} * width * height);
  std::minstd_rand random(seed + 1);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i / 7 + random() % 40);
  spng_ctx* const context = spng_ctx_new(SPNG_CTX_ENCODER);
  spng_set_option(context, SPNG_ENCODE_TO_BUFFER, 1);
  spng_ihdr header{};
  header.width = width;
  header.height = height;
  header.color_type = SPNG_COLOR_TYPE_TRUECOLOR;
  header.bit_depth = 8;
  spng_set_ihdr(context, &header);
  spng_encode_image(context, pixels.data(), pixels.size(), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE);
  size_t bytes = 0;
  int error = 0;
  void* const encoded = spng_get_png_buffer(context, &bytes, &error);
  const auto* const begin = static_cast<const std::byte*>(encoded);
  std::vector<std::byte> file(begin, begin + bytes);
  std::free(encoded);
  spng_ctx_free(context);
  return file;
}

class SameBytesTest : public ::testing::Test {
 protected:
  SameBytesTest() {
    Add(Jpeg(120, 80, 0));
    Add(Jpeg(64, 99, 1));
    Add(Jpeg(30, 20, 2));
    Add(Jpeg(301, 5, 3));
    Add(Jpeg(131, 77, 4, [](JpegOptions& options) { options.progressive = true; }));
    Add(Jpeg(131, 77, 5, [](JpegOptions& options) { options.horizontal = options.vertical = 0; }));
    Add(Jpeg(90, 121, 6, [](JpegOptions& options) { options.cmyk = true; }));
    Add(Jpeg(90, 61, 7, [](JpegOptions& options) { options.separate_scans = true; }));
    Add(Jpeg(90, 61, 8, [](JpegOptions& options) { options.restart_interval = 3; }));
    Add(Jpeg(203, 151, 9, [](JpegOptions& options) { options.horizontal = options.vertical = 1; }));
    for (int orientation = 2; orientation <= 8; ++orientation) Add(Turned(Jpeg(97, 64, 10), orientation));
    Add(Png(50, 70, 11));
    Add(Png(1, 1, 12));
    Add(Jpeg(1, 1, 13));
    std::vector<std::byte> cut = Jpeg(90, 60, 14);
    cut.resize(cut.size() / 2);
    Add(cut);
    cut = Png(60, 60, 15);
    cut.resize(cut.size() / 2);
    Add(cut);
    Add(std::vector<std::byte>(100, std::byte{'<'}));
    std::minstd_rand random(3);
    for (int i = 0; i < 12; ++i) {  // most of these are accepted, with wrong pixels somewhere
      std::vector<std::byte> damaged = Jpeg(140, 100, 16);
      const size_t at = damaged.size() / 3 + random() % (damaged.size() / 2);
      damaged[at] ^= static_cast<std::byte>(1U << (random() % 8));
      Add(damaged);
    }
  }

  void Add(const std::vector<std::byte>& file) {
    std::string number = std::to_string(files_++);
    number.insert(0, 3 - number.size(), '0');
    dir_.Write("set/one/" + number + ".jpg", file);
  }
  std::shared_ptr<const Dataset> Open() const {
    // Without the fields that are read on request only.
    return SelectFields(OpenLocal(dir_, "set", "image_folder").value(), {}).value();
  }
  static DecodedCache::Options Options(uint64_t bytes) {
    DecodedCache::Options options;
    options.capacity_bytes = bytes;
    options.settle_time = {};  // the files are new
    return options;
  }

  TempDir dir_;
  uint64_t files_ = 0;
};

struct Outcome {
  std::string status;
  std::vector<std::byte> image;
  bool operator==(const Outcome&) const = default;
};

Outcome LoadOne(const SampleLoader& loader, const SampleKey& key, SampleScratch& scratch) {
  std::vector<std::vector<std::byte>> tensors;
  for (const TensorSpec& spec : loader.outputs()) tensors.emplace_back(spec.SampleBytes().value());
  SampleTimes times;
  const Status status =
      loader.Load(key, std::vector<std::span<std::byte>>(tensors.begin(), tensors.end()), scratch, times);
  if (!status.ok()) return {status.ToString(), {}};
  Outcome outcome{"", tensors.front()};
  // What a client would do to the image.
  if (tensors.size() > 2) outcome.image.insert(outcome.image.end(), tensors[2].begin(), tensors[2].end());
  return outcome;
}

class Chains {
 public:
  explicit Chains(uint32_t seed) : random_(seed) {}

  std::vector<TransformSpec> Next() {
    std::vector<TransformSpec> chain;
    for (uint32_t i = Below(4); i > 0; --i) chain.push_back(Any());
    const uint32_t side = 8 + Below(60);
    switch (Below(3)) {
      case 0:
        chain.push_back(Resize{side, 8 + Below(60)});
        break;
      case 1:
        chain.push_back(CenterCrop{side, 8 + Below(60)});
        break;
      default:
        chain.push_back(RandomResizedCrop{side, 8 + Below(60)});
    }
    for (uint32_t i = Below(3); i > 0; --i) chain.push_back(Flip());
    if (Below(3) == 0) chain.push_back(Normalize{{0.5}, {0.25}});
    if (Below(3) == 0) chain.push_back(ToDtype{DType::kFloat16, true});
    return chain;
  }

 private:
  uint32_t Below(uint32_t count) { return static_cast<uint32_t>(random_() % count); }
  TransformSpec Flip() {
    const double p = Below(3) / 2.0;
    if (Below(2) == 0) return RandomHorizontalFlip{p};
    return RandomVerticalFlip{p};
  }
  TransformSpec Any() {
    static const std::vector<std::string> kFilters = {"nearest", "bilinear", "bicubic", "lanczos"};
    switch (Below(9)) {
      case 0:
        return Interpolated(Resize{0, 10 + Below(150)}, {kFilters[Below(4)]});
      case 1:
        return Interpolated(Resize{10 + Below(150), 10 + Below(150)}, {kFilters[Below(4)]});
      case 2:
        return Interpolated(Resize{0, 10 + Below(90)}, {"bilinear", "bicubic"});
      case 3:
        return CenterCrop{10 + Below(120), 10 + Below(120)};
      case 4:
        return Pad{{double(Below(9)), double(Below(9))}, {double(Below(256))}};
      case 5:
        return Pad{
            {double(Below(9))}, {0}, std::vector<std::string>{"edge", "reflect", "symmetric"}[Below(3)]};
      case 6:
        return Grayscale{3};
      case 7:
        return RandomCrop{10 + Below(40), 10 + Below(40), {double(Below(9))}, Below(2) == 0, {7}};
      default:
        return Flip();
    }
  }
  std::minstd_rand random_;
};

std::string NamesOf(const std::vector<TransformSpec>& chain) {
  std::string names;
  for (const TransformSpec& spec : chain) names += spec.name + " ";
  return names;
}

TEST_F(SameBytesTest, WithAndWithoutTheCacheByAnyTransforms) {
  const std::shared_ptr<const Dataset> dataset = Open();
  // Of the second size, the cache evicts all the time.
  DecodedCache large(Options(256 * kSmallCache));
  HostMemoryLedger other_ledger([](uint64_t) { return Result<HostMemory>(ReadHostMemory({}, UINT64_MAX)); });
  DecodedCache::Options small_options = Options(kSmallCache);
  small_options.ledger = &other_ledger;
  DecodedCache small(small_options);
  Chains chains(7);
  SampleScratch plain_scratch;
  SampleScratch cached_scratch;
  int used = 0;
  uint64_t kept = 0;
  for (int i = 0; i < 36; ++i) {
    const FeedSpec spec{.batch_size = 4,
                        .seed = static_cast<uint64_t>(i),
                        .transforms = chains.Next(),
                        .ignore_exif_orientation = i % 5 == 0};
    SCOPED_TRACE(std::to_string(i) + ": " + NamesOf(spec.transforms));
    const PixelOpsAt at = i % 2 == 0 ? PixelOpsAt::kWorker : PixelOpsAt::kClient;
    const auto plain = SampleLoader::Create(dataset, spec, at);
    if (!plain.ok()) continue;
    ++used;
    DecodedCache& cache = i % 3 == 0 ? small : large;
    ASSERT_OK_AND_ASSIGN(const auto cached, SampleLoader::Create(dataset, spec, at, {&cache, 1000}));
    for (uint64_t epoch = 0; epoch < 2; ++epoch) {
      for (uint64_t id = 0; id < files_; ++id) {
        const Outcome expected = LoadOne(**plain, {id, epoch}, plain_scratch);
        const Outcome got = LoadOne(*cached, {id, epoch}, cached_scratch);
        ASSERT_EQ(got.status, expected.status) << "sample " << id << ", epoch " << epoch;
        ASSERT_TRUE(got == expected) << "sample " << id << ", epoch " << epoch;
      }
    }
    kept += cached->cached_head()->hits();
  }
  EXPECT_GT(used, 25);
  EXPECT_GT(kept, 6 * files_);
  EXPECT_GT(small.counts().evictions, 50U);
}

// Limits are those of all transforms, whether the first of them had been done before or not.
TEST_F(SameBytesTest, WhatIsTooMuchInAllIsSoWithTheCache) {
  const std::shared_ptr<const Dataset> dataset = Open();
  DecodedCache cache(Options(256 * kSmallCache));
  SampleScratch scratch;
  FeedSpec head;
  head.batch_size = 4;
  for (int i = 0; i < 2; ++i) {
    head.transforms.push_back(Resize{16384, 16384});
    head.transforms.push_back(CenterCrop{64, 64});
  }
  FeedSpec whole = head;
  whole.transforms.push_back(Interpolated(Resize{16384, 16384}, {"bilinear", "bicubic"}));
  for (const TransformSpec& spec : {TransformSpec(CenterCrop{64, 64}), TransformSpec(Resize{16384, 16384}),
                                    TransformSpec(CenterCrop{64, 64})})
    whole.transforms.push_back(spec);
  const auto load = [&](const FeedSpec& spec, const CacheAccess& access) {
    const auto loader = SampleLoader::Create(dataset, spec, PixelOpsAt::kWorker, access).value();
    return LoadOne(*loader, {0, 0}, scratch);
  };
  const Outcome without = load(whole, {});
  EXPECT_THAT(without.status, HasSubstr("the transforms crop and resize the image to"));
  EXPECT_EQ(load(head, {&cache, 1000}).status, "");
  EXPECT_EQ(cache.counts().entries, 1U);
  EXPECT_TRUE(load(whole, {&cache, 1000}) == without);
}

// Feeds with the same head share; those with another, or another view of the files, do not.
TEST_F(SameBytesTest, FeedsShareWhatTheirFirstTransformsHaveInCommon) {
  const std::shared_ptr<const Dataset> dataset = Open();
  DecodedCache cache(Options(256 * kSmallCache));
  SampleScratch scratch;
  const auto hits = [&](FeedSpec spec, std::vector<TransformSpec> transforms) {
    spec.batch_size = 4;
    spec.transforms = std::move(transforms);
    const auto loader = SampleLoader::Create(dataset, spec, PixelOpsAt::kWorker, {&cache, 1000}).value();
    for (uint64_t id = 0; id < 10; ++id) EXPECT_EQ(LoadOne(*loader, {id, 0}, scratch).status, "");
    return loader->cached_head()->hits();
  };
  FeedSpec spec;
  EXPECT_EQ(hits(spec, {Resize{0, 40}, CenterCrop{32, 32}}), 0U);
  EXPECT_EQ(hits(spec, {Resize{0, 40}, CenterCrop{32, 32}, RandomHorizontalFlip{}}), 10U);
  EXPECT_EQ(hits(spec, {Resize{0, 40}, CenterCrop{32, 32}, Normalize{{0.5}, {0.5}}}), 10U);
  EXPECT_EQ(hits(spec, {Resize{0, 40}, CenterCrop{32, 31}}), 0U);
  EXPECT_EQ(hits(spec, {Interpolated(Resize{0, 40}, {"bicubic"}), CenterCrop{32, 32}}), 0U);
  EXPECT_EQ(hits(spec, {RandomResizedCrop{32, 32}}), 0U);
  spec.seed = 99;
  EXPECT_EQ(hits(spec, {RandomResizedCrop{24, 24}}), 10U);
  EXPECT_EQ(hits(spec, {Interpolated(Resize{32, 32}, {"bilinear", "bicubic"})}), 10U)
      << "starts at the image";
  spec.ignore_exif_orientation = true;
  EXPECT_EQ(hits(spec, {RandomResizedCrop{24, 24}}), 0U);
}

TEST_F(SameBytesTest, AChangedOrRemovedFileIsReadAgain) {
  DecodedCache cache(Options(256 * kSmallCache));
  const FeedSpec spec{.batch_size = 4, .transforms = {Resize{32, 32}}};
  const std::shared_ptr<const Dataset> dataset = Open();
  const auto plain = SampleLoader::Create(dataset, spec).value();
  const auto cached = SampleLoader::Create(dataset, spec, PixelOpsAt::kWorker, {&cache, 1000}).value();
  SampleScratch scratch;
  const auto same = [&] { return LoadOne(*plain, {0, 0}, scratch) == LoadOne(*cached, {0, 0}, scratch); };
  EXPECT_TRUE(same() && same());
  EXPECT_EQ(cached->cached_head()->hits(), 1U);
  const std::filesystem::path path = dir_ / "set/one/000.jpg";
  const auto before = std::filesystem::last_write_time(path);
  // Of the same size, and with the old time of modification: a bit of the picture, not of its headers.
  std::vector<std::byte> bytes = FileBytes(path);
  bytes[bytes.size() / 2] ^= std::byte{4};
  dir_.Write("set/one/000.jpg", bytes);
  std::filesystem::last_write_time(path, before);
  const Outcome changed = LoadOne(*cached, {0, 0}, scratch);
  EXPECT_TRUE(changed == LoadOne(*plain, {0, 0}, scratch));
  EXPECT_EQ(cached->cached_head()->hits(), 1U);
  EXPECT_TRUE(same());
  EXPECT_EQ(cached->cached_head()->hits(), 2U);
  // Another file under the name, and then none.
  const std::filesystem::path other = dir_.Write("set/one/000.new", Jpeg(120, 80, 77));
  std::filesystem::rename(other, path);
  EXPECT_TRUE(same() && same());
  EXPECT_EQ(cached->cached_head()->hits(), 3U);
  std::filesystem::remove(path);
  EXPECT_NE(LoadOne(*cached, {0, 0}, scratch).status, "");
  EXPECT_TRUE(same());
}

TEST_F(SameBytesTest, BadSamplesAreNotKept) {
  DecodedCache cache(Options(256 * kSmallCache));
  const FeedSpec spec{.batch_size = 4, .transforms = {Resize{32, 32}}};
  const std::shared_ptr<const Dataset> dataset = Open();
  const auto cached = SampleLoader::Create(dataset, spec, PixelOpsAt::kWorker, {&cache, 1000}).value();
  SampleScratch scratch;
  uint64_t good = 0;
  for (uint64_t epoch = 0; epoch < 2; ++epoch)
    for (uint64_t id = 0; id < files_; ++id)
      good += LoadOne(*cached, {id, epoch}, scratch).status.empty() ? 1 : 0;
  EXPECT_EQ(cache.counts().entries, good / 2);
  EXPECT_LT(good, 2 * files_);
  EXPECT_EQ(cached->cached_head()->hits(), good / 2);
}

TEST_F(SameBytesTest, OnManyThreadsWithEvictions) {
  const std::shared_ptr<const Dataset> dataset = Open();
  DecodedCache cache(Options(kSmallCache));
  const FeedSpec spec{.batch_size = 4, .transforms = {RandomResizedCrop{24, 24}}};
  const auto plain = SampleLoader::Create(dataset, spec).value();
  const auto cached = SampleLoader::Create(dataset, spec, PixelOpsAt::kWorker, {&cache, 1000}).value();
  std::vector<Outcome> expected;
  SampleScratch scratch;
  for (uint64_t epoch = 0; epoch < 4; ++epoch)
    for (uint64_t id = 0; id < files_; ++id) expected.push_back(LoadOne(*plain, {id, epoch}, scratch));
  std::atomic<int> different{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      SampleScratch own;
      for (uint64_t i = 0; i < expected.size(); ++i) {
        const uint64_t k = (i * 7 + t * 13) % expected.size();
        if (!(LoadOne(*cached, {k % files_, k / files_}, own) == expected[k])) ++different;
        if (t == 0 && i % 50 == 0) cache.Drop();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(different, 0);
  EXPECT_GT(cached->cached_head()->hits(), 0U);
}

}  // namespace
}  // namespace pinfeed
