// SPDX-License-Identifier: Apache-2.0
#include "server/loading/sample_loader.h"

#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

using Contents = std::vector<std::vector<std::vector<std::byte>>>;

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> Photo(int width, int height, uint32_t seed) {
  return MakeJpeg({.width = width, .height = height}, seed);
}

// Three images of different sizes with labels 10, 11, 12; then a truncated one, and one that is no image.
std::shared_ptr<const Dataset> Photos() {
  std::vector<std::byte> cut = Photo(90, 60, 3);
  cut.resize(cut.size() / 2);
  const std::string text = "<html>";
  Contents contents = {{Photo(120, 80, 0), BytesOf<int64_t>({10})},
                       {Photo(64, 99, 1), BytesOf<int64_t>({11})},
                       {Photo(30, 20, 2), BytesOf<int64_t>({12})},
                       {cut, BytesOf<int64_t>({13})},
                       {BytesOf<char>({text.begin(), text.end()}), BytesOf<int64_t>({14})}};
  return std::make_shared<MemoryDataset>(
      std::vector<Field>{EncodedField("image"), TensorField("label", DType::kInt64, {})},
      std::move(contents));
}

FeedSpec Training() {
  FeedSpec spec;
  spec.seed = 5;
  spec.sample_ids = true;
  spec.transforms = {RandomResizedCrop{48, 40}, RandomHorizontalFlip{}, Normalize{{0.5}, {0.25}},
                     ToDtype{DType::kFloat16, false}};
  return spec;
}

// The tensors of one sample, one behind the other; places and what lies around them are checked to be left
// alone.
struct Loaded {
  Status status;
  std::vector<std::vector<std::byte>> tensors;
};
Loaded LoadOne(const SampleLoader& loader, const SampleKey& key, SampleScratch& scratch, bool zero = false) {
  constexpr size_t kGuard = 64;
  constexpr std::byte kMark{0xA5};
  Loaded loaded;
  std::vector<std::vector<std::byte>> guarded;
  std::vector<std::span<std::byte>> places;
  for (const TensorSpec& spec : loader.outputs()) {
    guarded.emplace_back(spec.SampleBytes().value() + 2 * kGuard, kMark);
  }
  for (auto& bytes : guarded) places.push_back(std::span(bytes).subspan(kGuard, bytes.size() - 2 * kGuard));
  SampleTimes times;
  if (zero) {
    loader.WriteZeros(key, places);
  } else {
    loaded.status = loader.Load(key, places, scratch, times);
  }
  for (const auto& bytes : guarded) {
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(bytes[i], kMark);
      EXPECT_EQ(bytes[bytes.size() - 1 - i], kMark);
    }
    loaded.tensors.emplace_back(bytes.begin() + kGuard, bytes.end() - kGuard);
  }
  return loaded;
}

int64_t AsInt64(const std::vector<std::byte>& bytes) {
  int64_t value = 0;
  if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

TEST(SampleLoaderTest, OutputsAreTheFieldsAfterTheTransforms) {
  ASSERT_OK_AND_ASSIGN(const auto loader, SampleLoader::Create(Photos(), Training()));
  EXPECT_THAT(loader->outputs(), ElementsAre(TensorSpec{"image", DType::kFloat16, {3, 48, 40}},
                                             TensorSpec{"label", DType::kInt64, {}},
                                             TensorSpec{"sample_id", DType::kInt64, {}}));
  FeedSpec spec = Training();
  spec.image_layout = ImageLayout::kHwc;
  spec.sample_ids = false;
  ASSERT_OK_AND_ASSIGN(const auto other, SampleLoader::Create(Photos(), spec));
  EXPECT_THAT(other->outputs(), ElementsAre(TensorSpec{"image", DType::kFloat16, {48, 40, 3}},
                                            TensorSpec{"label", DType::kInt64, {}}));
}

TEST(SampleLoaderTest, SameKeyGivesTheSameBytesWithAnyScratchOnAnyThread) {
  ASSERT_OK_AND_ASSIGN(const auto loader, SampleLoader::Create(Photos(), Training()));
  std::vector<Loaded> first;
  SampleScratch scratch;
  for (uint64_t epoch = 0; epoch < 8; ++epoch) {
    for (uint64_t id = 0; id < 3; ++id) {
      first.push_back(LoadOne(*loader, {id, epoch}, scratch));
      ASSERT_OK(first.back().status);
      EXPECT_EQ(AsInt64(first.back().tensors[1]), static_cast<int64_t>(10 + id));
      EXPECT_EQ(AsInt64(first.back().tensors[2]), static_cast<int64_t>(id));
    }
  }
  EXPECT_NE(first[0].tensors[0], first[3].tensors[0]);  // another epoch, another crop
  std::vector<int> different(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < different.size(); ++t) {
    threads.emplace_back([&, t] {
      SampleScratch own;
      for (size_t i = first.size(); i-- > 0;) {  // in another order, with failures in between
        static_cast<void>(LoadOne(*loader, {3, 0}, own).status.ok());
        const Loaded again = LoadOne(*loader, {i % 3, i / 3}, own);
        if (!again.status.ok() || again.tensors != first[i].tensors) ++different[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(different, ElementsAre(0, 0, 0, 0));
}

TEST(SampleLoaderTest, SeedChangesTheCrops) {
  FeedSpec spec = Training();
  ASSERT_OK_AND_ASSIGN(const auto loader, SampleLoader::Create(Photos(), spec));
  spec.seed = 6;
  ASSERT_OK_AND_ASSIGN(const auto other, SampleLoader::Create(Photos(), spec));
  SampleScratch scratch;
  EXPECT_NE(LoadOne(*loader, {0, 0}, scratch).tensors[0], LoadOne(*other, {0, 0}, scratch).tensors[0]);
}

TEST(SampleLoaderTest, BadSampleIsNamedWithItsReason) {
  ASSERT_OK_AND_ASSIGN(const auto loader, SampleLoader::Create(Photos(), Training()));
  SampleScratch scratch;
  EXPECT_THAT(LoadOne(*loader, {3, 0}, scratch).status,
              StatusIs(Code::kDataLoss, HasSubstr("memory/3: JPEG file is truncated")));
  EXPECT_THAT(LoadOne(*loader, {4, 0}, scratch).status,
              StatusIs(Code::kDataLoss,
                       HasSubstr("memory/4: neither JPEG, PNG nor WebP: the file starts with 3c 68 74 6d")));
  for (uint64_t epoch = 0; epoch < 50; ++epoch)
    EXPECT_FALSE(LoadOne(*loader, {3, epoch}, scratch).status.ok());
}

// Whichever field could not be read, and wherever the pixels are finished.
TEST(SampleLoaderTest, BadSampleIsZeroInEveryFieldButItsId) {
  const auto photos = Photos();
  const auto tensors = std::make_shared<MemoryDataset>(
      std::vector<Field>{TensorField("image", DType::kUint8, {4, 5, 3}),
                         TensorField("label", DType::kInt64, {}), TensorField("mask", DType::kBool, {4, 5})},
      Contents(5, {BytesOf(std::vector<uint8_t>(60, 7)), BytesOf<int64_t>({1}),
                   BytesOf<uint8_t>({1})}));  // the mask is too short
  FeedSpec spec = Training();
  spec.on_bad_sample = OnBadSample::kZero;
  spec.valid = true;
  SampleScratch scratch;
  for (const std::shared_ptr<const Dataset>& dataset : {photos, std::shared_ptr<const Dataset>(tensors)}) {
    if (dataset == tensors) spec.masks = {"mask"};
    for (const PixelOpsAt tail_at : {PixelOpsAt::kWorker, PixelOpsAt::kClient}) {
      ASSERT_OK_AND_ASSIGN(const auto loader, SampleLoader::Create(dataset, spec, tail_at));
      EXPECT_FALSE(LoadOne(*loader, {3, 0}, scratch).status.ok());
      const Loaded zero = LoadOne(*loader, {3, 0}, scratch, true);
      ASSERT_EQ(zero.tensors.size(), loader->outputs().size());
      for (size_t t = 0; t < zero.tensors.size(); ++t) {
        const std::string& name = loader->outputs()[t].name;
        if (name == "sample_id") {
          EXPECT_EQ(AsInt64(zero.tensors[t]), 3);
        } else if (name == "image.mark") {
          EXPECT_EQ(zero.tensors[t].front(), static_cast<std::byte>(ImageMark::kZero));
        } else {
          EXPECT_EQ(zero.tensors[t], std::vector<std::byte>(zero.tensors[t].size())) << name;
        }
      }
    }
  }
}

TEST(SampleLoaderTest, ValidTellsGoodSamplesWhateverHappensToBadOnes) {
  FeedSpec spec = Training();
  spec.valid = true;
  SampleScratch scratch;
  for (const OnBadSample choice : {OnBadSample::kFail, OnBadSample::kSkip, OnBadSample::kZero}) {
    spec.on_bad_sample = choice;
    for (const bool ids : {false, true}) {
      spec.sample_ids = ids;
      ASSERT_OK_AND_ASSIGN(const auto loader, SampleLoader::Create(Photos(), spec));
      const size_t valid = ids ? 3 : 2;
      EXPECT_EQ(loader->outputs()[valid], (TensorSpec{"valid", DType::kBool, {}}));
      EXPECT_THAT(LoadOne(*loader, {1, 0}, scratch).tensors[valid], ElementsAre(std::byte{1}));
      EXPECT_THAT(LoadOne(*loader, {3, 0}, scratch, true).tensors[valid], ElementsAre(std::byte{0}));
    }
  }
}

TEST(SampleLoaderTest, EveryFaultIsListedAtOnce) {
  FeedSpec spec;
  spec.transforms = {CenterCrop{4, 4}, Normalize{{0, 0}, {1, 1}}};
  const Result<std::unique_ptr<SampleLoader>> loader = SampleLoader::Create(Photos(), spec);
  EXPECT_THAT(loader,
              StatusIs(Code::kInvalidArgument,
                       "transforms[1] normalize: mean has 2 values; 1 or 3 (one a channel) can be used\n"
                       "transforms[1] normalize: std has 2 values; 1 or 3 (one a channel) can be used"));
}

TEST(SampleLoaderTest, ImagesWithoutOneSizeAreRefused) {
  FeedSpec spec;
  const std::string advice = "image sizes vary, or may: add Resize([h, w]), CenterCrop or RandomResizedCrop";
  EXPECT_THAT(SampleLoader::Create(Photos(), spec), StatusIs(Code::kInvalidArgument, HasSubstr(advice)));
  spec.transforms = {Resize{0, 256}};
  EXPECT_THAT(SampleLoader::Create(Photos(), spec), StatusIs(Code::kInvalidArgument, HasSubstr(advice)));
  spec.transforms = {Resize{32, 32}};
  EXPECT_OK(SampleLoader::Create(Photos(), spec));
}

TEST(SampleLoaderTest, FieldsOfTheDatasetWithTheNamesOfOwnTensorsAreNotOverwritten) {
  const auto dataset =
      std::make_shared<MemoryDataset>(std::vector<Field>{TensorField("sample_id", DType::kInt64, {}),
                                                         TensorField("valid", DType::kInt64, {})},
                                      Contents{{BytesOf<int64_t>({1}), BytesOf<int64_t>({2})}});
  FeedSpec spec;
  EXPECT_OK(SampleLoader::Create(dataset, spec));
  spec.sample_ids = spec.valid = true;
  EXPECT_THAT(
      SampleLoader::Create(dataset, spec),
      StatusIs(Code::kInvalidArgument,
               "sample_ids: the dataset has a field 'sample_id' of its own; leave sample_ids out, or rename "
               "the field\nvalid: the dataset has a field 'valid' of its own; leave valid out, or rename the "
               "field"));
}

TEST(SampleLoaderTest, TensorsWithoutTransformsGoThroughUntouched) {
  const std::vector<uint8_t> pixels = {1, 2, 3, 4, 5, 6};
  const auto dataset = std::make_shared<MemoryDataset>(
      std::vector<Field>{TensorField("image", DType::kUint8, {1, 2, 3})}, Contents{{BytesOf(pixels)}});
  ASSERT_OK_AND_ASSIGN(const auto loader, SampleLoader::Create(dataset, {}));
  EXPECT_THAT(loader->outputs(), ElementsAre(TensorSpec{"image", DType::kUint8, {1, 2, 3}}));
  SampleScratch scratch;
  EXPECT_EQ(LoadOne(*loader, {0, 0}, scratch).tensors[0], BytesOf(pixels));
}

// The four ways in which a tensor may hold an image all give the same crop.
TEST(SampleLoaderTest, TensorImagesAreTransformedWhateverTheirLayout) {
  constexpr int64_t kHeight = 6;
  constexpr int64_t kWidth = 8;
  std::vector<uint8_t> first(kHeight * kWidth * 3);
  std::vector<uint8_t> last(first.size());
  for (int64_t i = 0; i < kHeight * kWidth; ++i) {
    for (int64_t c = 0; c < 3; ++c) {
      const auto value = static_cast<uint8_t>(5 * i + c);
      first[static_cast<size_t>(c * kHeight * kWidth + i)] = value;
      last[static_cast<size_t>(3 * i + c)] = value;
    }
  }
  const std::vector<uint8_t> grey(first.begin(), first.begin() + kHeight * kWidth);
  FeedSpec spec;
  spec.transforms = {CenterCrop{2, 4}, RandomHorizontalFlip{1}, ToDtype{DType::kFloat32, false}};
  SampleScratch scratch;
  const auto load = [&](std::vector<int64_t> shape, const std::vector<uint8_t>& pixels) {
    const auto dataset = std::make_shared<MemoryDataset>(
        std::vector<Field>{TensorField("x", DType::kUint8, std::move(shape))}, Contents{{BytesOf(pixels)}});
    const auto loader = SampleLoader::Create(dataset, spec);
    EXPECT_TRUE(loader.ok()) << loader.status().ToString();
    std::vector<float> values;
    if (!loader.ok()) return values;
    const Loaded loaded = LoadOne(*loader.value(), {0, 0}, scratch);
    EXPECT_OK(loaded.status);
    values.resize(loaded.tensors[0].size() / sizeof(float));
    std::memcpy(values.data(), loaded.tensors[0].data(), loaded.tensors[0].size());
    return values;
  };
  std::vector<float> expected;
  for (int c = 0; c < 3; ++c) {
    for (int y = 2; y < 4; ++y) {
      for (int x = 5; x >= 2; --x) expected.push_back(static_cast<float>(5 * (kWidth * y + x) + c));
    }
  }
  EXPECT_EQ(load({3, kHeight, kWidth}, first), expected);
  EXPECT_EQ(load({kHeight, kWidth, 3}, last), expected);
  expected.resize(8);
  EXPECT_EQ(load({1, kHeight, kWidth}, grey), expected);
  EXPECT_EQ(load({kHeight, kWidth, 1}, grey), expected);
}

// Three images and labels, for which there is no memory when the one or the other is read.
class MemorylessDataset final : public Dataset {
 public:
  explicit MemorylessDataset(bool image) : image_(image) {}
  const DatasetInfo& info() const override { return photos_->info(); }
  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    if (!image_) throw std::bad_alloc();
    return photos_->ReadTensor(id, field, out);
  }
  Status ReadBytes(uint64_t id, size_t field, std::vector<std::byte>& out) const override {
    if (image_) throw std::bad_alloc();
    return photos_->ReadBytes(id, field, out);
  }
  std::string Describe(uint64_t id) const override { return photos_->Describe(id); }

 private:
  const std::shared_ptr<const Dataset> photos_ = Photos();
  const bool image_;
};

TEST(SampleLoaderTest, SampleWithoutMemoryIsABadSample) {
  SampleScratch scratch;
  for (const bool image : {true, false}) {
    ASSERT_OK_AND_ASSIGN(const auto loader,
                         SampleLoader::Create(std::make_shared<MemorylessDataset>(image), Training()));
    EXPECT_THAT(LoadOne(*loader, {1, 0}, scratch).status,
                StatusIs(Code::kResourceExhausted, HasSubstr("memory/1: no memory to read, decode or")));
    const Loaded zero = LoadOne(*loader, {1, 0}, scratch, true);
    EXPECT_EQ(zero.tensors[0], std::vector<std::byte>(zero.tensors[0].size()));
    EXPECT_EQ(AsInt64(zero.tensors[1]), 0);
  }
  ASSERT_OK_AND_ASSIGN(const auto loader, SampleLoader::Create(Photos(), Training()));
  EXPECT_OK(LoadOne(*loader, {1, 0}, scratch).status);  // with the same scratch
}

// Samples of more than 64 MiB: one that is read and resized, one that cannot be read, and one whose weights
// alone are as large.
TEST(SampleLoaderTest, GiantSamplesLeaveNoMemoryBehind) {
  struct Giant {
    std::vector<int64_t> shape;
    bool readable;
    Resize resize;
  };
  const Giant giants[] = {{{3, 6000, 4000}, true, {8, 8, 0}},
                          {{3, 6000, 4000}, false, {8, 8, 0}},
                          {{1, 1, kMaxResizeSide}, true, {1, 2, 0}}};
  for (const Giant& giant : giants) {
    SCOPED_TRACE(giant.shape.back());
    std::vector<std::byte> pixels(
        giant.readable ? static_cast<size_t>(giant.shape[0] * giant.shape[1] * giant.shape[2]) : 1);
    const auto dataset = std::make_shared<MemoryDataset>(
        std::vector<Field>{TensorField("image", DType::kUint8, giant.shape)}, Contents{{std::move(pixels)}});
    FeedSpec spec;
    spec.transforms = {giant.resize};
    ASSERT_OK_AND_ASSIGN(const auto loader, SampleLoader::Create(dataset, spec));
    SampleScratch scratch;
    const size_t before = AllocatedBytes();
    EXPECT_EQ(LoadOne(*loader, {0, 0}, scratch).status.ok(), giant.readable);
    EXPECT_LT(AllocatedBytes(), before + (size_t{40} << 20));
  }
}

TEST(SampleLoaderTest, TimeOfAReadThatFailsIsAccountedFor) {
  const auto time = [](std::vector<TransformSpec> transforms, PixelOpsAt tail_at) {
    const auto dataset = std::make_shared<MemoryDataset>(
        std::vector<Field>{TensorField("image", DType::kUint8, {3, 8, 8})}, Contents{{BytesOf<char>({})}});
    FeedSpec spec;
    spec.transforms = std::move(transforms);
    const auto loader = SampleLoader::Create(dataset, spec, tail_at).value();
    std::vector<std::vector<std::byte>> memory;
    for (const TensorSpec& output : loader->outputs()) memory.emplace_back(output.SampleBytes().value());
    const std::vector<std::span<std::byte>> places(memory.begin(), memory.end());
    SampleScratch scratch;
    SampleTimes times;
    EXPECT_FALSE(loader->Load({0, 0}, places, scratch, times).ok());
    return times;
  };
  for (const SampleTimes& times :
       {time({CenterCrop{4, 4}}, PixelOpsAt::kWorker), time({RandomHorizontalFlip{}}, PixelOpsAt::kClient)}) {
    EXPECT_GT(times.read_ns, 0U);
    EXPECT_EQ(times.decode_ns, 0U);
  }
}

TEST(SampleLoaderTest, TimeIsAccountedFor) {
  ASSERT_OK_AND_ASSIGN(const auto loader, SampleLoader::Create(Photos(), Training()));
  SampleScratch scratch;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::span<std::byte>> places;
  for (const TensorSpec& spec : loader->outputs()) memory.emplace_back(spec.SampleBytes().value());
  for (auto& bytes : memory) places.emplace_back(bytes);
  SampleTimes times;
  ASSERT_OK(loader->Load({0, 0}, places, scratch, times));
  EXPECT_GT(times.read_ns, 0U);
  EXPECT_GT(times.decode_ns, 0U);
}

}  // namespace
}  // namespace pinfeed
