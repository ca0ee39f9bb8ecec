// SPDX-License-Identifier: Apache-2.0
#include "server/loading/gpu_decode_program.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/support/planned_images.h"
#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

constexpr size_t kSide = 48;
constexpr size_t kPixelBytes = kSide * kSide * 3;

std::vector<std::byte> Photo(uint32_t seed, bool progressive = false) {
  return MakeJpeg({.width = 80 + static_cast<int>(seed % 40), .height = 70, .progressive = progressive},
                  seed);
}

std::shared_ptr<const Dataset> Files(std::vector<std::vector<std::byte>> files) {
  std::vector<std::vector<std::vector<std::byte>>> contents;
  for (auto& file : files) contents.push_back({std::move(file)});
  return std::make_shared<MemoryDataset>(std::vector<Field>{EncodedField("image")}, std::move(contents));
}

FeedSpec Spec(Decode decode = Decode::kGpu, uint32_t share = 0) {
  FeedSpec spec;
  spec.batch_size = 4;
  spec.seed = 9;
  spec.image_layout = ImageLayout::kHwc;
  spec.transforms = {RandomResizedCrop{kSide, kSide}, RandomVerticalFlip{}, RandomHorizontalFlip{}};
  spec.decode = decode;
  spec.gpu_share = share;
  return spec;
}

// Purpose: one sample at a time, as the slot gets it.
class GpuSamples {
 public:
  explicit GpuSamples(const SampleLoader& loader)
      : loader_(loader),
        layout_(BatchLayout::Create(loader.outputs(), 1).value()),
        slot_(layout_.slot_bytes) {}

  Status Load(const SampleKey& key) {
    rows_ = std::vector<std::atomic<uint64_t>>(layout_.tensors.size());
    SampleTimes times;
    return loader_.Load(key, Places(), scratch_, times);
  }
  void Zero(const SampleKey& key) { loader_.WriteZeros(key, Places()); }

  ImagePlan plan() const { return At<ImagePlan>(*loader_.tail()->plan); }
  uint8_t mark() const { return At<uint8_t>(*loader_.tail()->mark); }
  std::span<const std::byte> bytes() const {
    const TensorPlace& image = layout_.tensors[loader_.tail()->tensor];
    const auto extent = At<RowExtent>(*image.spec.extents);
    return std::span(slot_).subspan(image.offset + static_cast<size_t>(extent.first),
                                    static_cast<size_t>(extent.count));
  }
  // The pixels that a client makes of it, mirrored as the kernel does.
  std::vector<uint8_t> Made() {
    std::vector<uint8_t> pixels(kPixelBytes);
    if (plan().kind == 1) {
      EXPECT_OK(MakePlanned(bytes(), plan(), {kSide, kSide, 3}, pixels));
    } else {
      std::memcpy(pixels.data(), bytes().data(), bytes().size());
    }
    if (mark() == 1) MirrorRows(pixels);
    return pixels;
  }

 private:
  template <typename T>
  T At(size_t tensor) const {
    T value;
    std::memcpy(&value, slot_.data() + layout_.tensors[tensor].offset, sizeof value);
    return value;
  }
  static void MirrorRows(std::vector<uint8_t>& pixels) {
    for (size_t y = 0; y < kSide; ++y)
      for (size_t x = 0; x < kSide / 2; ++x)
        for (size_t c = 0; c < 3; ++c)
          std::swap(pixels[(y * kSide + x) * 3 + c], pixels[(y * kSide + kSide - 1 - x) * 3 + c]);
  }
  SamplePlaces Places() {
    std::vector<std::span<std::byte>> places;
    for (const TensorPlace& tensor : layout_.tensors)
      places.push_back(std::span(slot_).subspan(tensor.offset, tensor.sample_bytes));
    return {places, layout_, 0, rows_};
  }

  const SampleLoader& loader_;
  const BatchLayout layout_;
  std::vector<std::byte> slot_;
  std::vector<std::atomic<uint64_t>> rows_;
  SampleScratch scratch_;
};

std::unique_ptr<SampleLoader> Loader(const std::shared_ptr<const Dataset>& dataset, const FeedSpec& spec) {
  return SampleLoader::Create(dataset, spec, PixelOpsAt::kClient).value();
}

TEST(GpuDecodeProgramTest, SlotGetsBytesAPlanAndAMark) {
  const std::vector<std::byte> file = Photo(0);
  const auto loader = Loader(Files({file}), Spec());
  const std::vector<TensorSpec>& outputs = loader->outputs();
  ASSERT_EQ(outputs.size(), 4U);
  EXPECT_EQ(outputs[0].name, "image");
  EXPECT_EQ(outputs[0].shape, std::vector<int64_t>{kMinEncodedBytes});
  EXPECT_TRUE(outputs[0].packed());
  EXPECT_EQ(outputs[1].name, "image.plan");
  ASSERT_TRUE(loader->tail());
  EXPECT_EQ(loader->tail()->output.shape, (std::vector<int64_t>{kSide, kSide, 3}));
  GpuSamples loaded(*loader);
  ASSERT_OK(loaded.Load({0, 0}));
  EXPECT_TRUE(std::ranges::equal(loaded.bytes(), file));
  EXPECT_EQ(loaded.plan().kind, 1U);
}

// By either way, and whatever the share: what the workers write themselves.
TEST(GpuDecodeProgramTest, EverySampleHasTheWorkersPixels) {
  std::vector<std::vector<std::byte>> files;
  for (uint32_t i = 0; i < 12; ++i) files.push_back(Photo(i, i % 4 == 3));
  const auto dataset = Files(files);
  ASSERT_OK_AND_ASSIGN(const auto workers, SampleLoader::Create(dataset, Spec(Decode::kCpu)));
  SampleScratch scratch;
  for (const uint32_t share : {1000U, 500U, 1U}) {
    const auto loader = Loader(dataset, Spec(Decode::kAuto, share));
    GpuSamples loaded(*loader);
    int by_gpu = 0;
    for (uint64_t epoch = 0; epoch < 4; ++epoch) {
      for (uint64_t id = 0; id < files.size(); ++id) {
        ASSERT_OK(loaded.Load({id, epoch}));
        by_gpu += loaded.plan().kind == 1 ? 1 : 0;
        std::vector<std::byte> expected(kPixelBytes);
        SampleTimes times;
        ASSERT_OK(workers->Load({id, epoch}, std::vector{std::span(expected)}, scratch, times));
        const std::vector<uint8_t> made = loaded.Made();
        ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(made)), expected))
            << "sample " << id << " of epoch " << epoch << " at a share of " << share;
      }
    }
    // 36 of the 48 are baseline files.
    EXPECT_GE(by_gpu, share == 1000 ? 36 : share == 500 ? 6 : 0);
    EXPECT_LE(by_gpu, share == 1000 ? 36 : share == 500 ? 30 : 6);
  }
}

TEST(GpuDecodeProgramTest, WhoDecodesDependsOnSeedEpochAndSampleAlone) {
  const auto dataset = Files(std::vector<std::vector<std::byte>>(64, Photo(1)));
  const auto chosen = [&](uint64_t seed, uint64_t epoch) {
    FeedSpec spec = Spec(Decode::kAuto, 500);
    spec.seed = seed;
    spec.batch_size = 1 + static_cast<uint32_t>(seed);
    const auto loader = Loader(dataset, spec);
    GpuSamples loaded(*loader);
    std::vector<bool> by_gpu;
    for (uint64_t id = 0; id < 64; ++id) {
      EXPECT_OK(loaded.Load({id, epoch}));
      by_gpu.push_back(loaded.plan().kind == 1);
    }
    return by_gpu;
  };
  EXPECT_EQ(chosen(1, 0), chosen(1, 0));
  EXPECT_NE(chosen(1, 0), chosen(1, 1));
  EXPECT_NE(chosen(1, 0), chosen(2, 0));
}

TEST(GpuDecodeProgramTest, LargeFilesAreDecodedByTheWorkers) {
  std::vector<std::byte> file = Photo(0);
  const std::vector<std::byte> comment(60000, std::byte{'x'});
  for (int i = 0; i < 5; ++i) {
    const std::vector<std::byte> head = {std::byte{0xFF}, std::byte{0xFE}, std::byte{60002 >> 8},
                                         std::byte{60002 & 0xFF}};
    file.insert(file.begin() + 2, comment.begin(), comment.end());
    file.insert(file.begin() + 2, head.begin(), head.end());
  }
  ASSERT_GT(file.size(), kMinEncodedBytes);
  const auto loader = Loader(Files({file}), Spec());
  GpuSamples loaded(*loader);
  ASSERT_OK(loaded.Load({0, 0}));
  ImagePlan pixels{};
  pixels.kind = static_cast<uint32_t>(ImagePlanKind::kPixels);
  EXPECT_EQ(loaded.plan(), pixels);
  EXPECT_EQ(loaded.bytes().size(), kPixelBytes);
}

TEST(GpuDecodeProgramTest, BadFilesAreRefusedAndZeroed) {
  std::vector<std::byte> cut = Photo(0);
  cut.resize(cut.size() / 2);
  std::vector<std::byte> without_tables = Photo(0);  // the definition becomes a comment
  for (size_t i = 0; i + 1 < without_tables.size(); ++i)
    if (without_tables[i] == std::byte{0xFF} && without_tables[i + 1] == std::byte{0xDB})
      without_tables[i + 1] = std::byte{0xFE};
  const auto loader = Loader(Files({cut, without_tables, {}}), Spec());
  GpuSamples loaded(*loader);
  EXPECT_THAT(loaded.Load({0, 0}), StatusIs(Code::kDataLoss, HasSubstr("truncated")));
  EXPECT_THAT(loaded.Load({1, 0}), StatusIs(Code::kDataLoss, HasSubstr("Quantization")));
  EXPECT_THAT(loaded.Load({2, 0}), StatusIs(Code::kDataLoss, HasSubstr("empty")));
  loaded.Zero({1, 0});
  EXPECT_EQ(loaded.plan(), ImagePlan{});
  EXPECT_EQ(loaded.mark(), static_cast<uint8_t>(ImageMark::kZero));
  EXPECT_TRUE(loaded.bytes().empty());
}

TEST(ChooseDecodeTest, ShareLetsBothSidesFinishTogether) {
  const auto dataset = Files({Photo(0)});
  ASSERT_OK_AND_ASSIGN(const DecodeChoice few, ChooseDecode(Spec(Decode::kAuto), *dataset, "", 1));
  EXPECT_EQ(few.decode, Decode::kAuto);
  EXPECT_EQ(few.gpu_share, 1000U);
  ASSERT_OK_AND_ASSIGN(const DecodeChoice many, ChooseDecode(Spec(Decode::kAuto), *dataset, "", 12));
  // Both take the same time: the workers for what they decode and pass on, the GPU for its part.
  const double share = many.gpu_share / 1000.0;
  EXPECT_NEAR(((1 - share) / 700 + share / 18500) / 12, share / 31000, 3e-7);
  ASSERT_OK_AND_ASSIGN(const DecodeChoice given, ChooseDecode(Spec(Decode::kAuto, 3), *dataset, "", 16));
  EXPECT_EQ(given.gpu_share, 3U);
  ASSERT_OK_AND_ASSIGN(const DecodeChoice cpu, ChooseDecode(Spec(Decode::kCpu), *dataset, "no GPU", 16));
  EXPECT_EQ(cpu.decode, Decode::kCpu);
  EXPECT_EQ(cpu.note, "");
}

TEST(ChooseDecodeTest, WorkersLeaveProcessorsToTheClient) {
  EXPECT_EQ(WorkersBesideDecoders(16, 16, 1), 12U);
  EXPECT_EQ(WorkersBesideDecoders(64, 64, 1), 60U);
  EXPECT_EQ(WorkersBesideDecoders(8, 16, 1), 8U) << "there are more processors than workers";
  EXPECT_EQ(WorkersBesideDecoders(4, 4, 1), 2U);
  EXPECT_EQ(WorkersBesideDecoders(1, 1, 1), 1U);
  EXPECT_EQ(WorkersBesideDecoders(128, 128, 8), 12U) << "as many for each rank as on a host for it alone";
  EXPECT_EQ(WorkersBesideDecoders(4, 4, 8), 1U);
}

TEST(ChooseDecodeTest, AutoIsTheCpuWhereTheGpuCannot) {
  const auto dataset = Files({Photo(0)});
  FeedSpec padded = Spec(Decode::kAuto);
  padded.transforms = {Pad{{4}}, Resize{kSide, kSide}};
  const auto tensors =
      std::make_shared<MemoryDataset>(std::vector<Field>{TensorField("image", DType::kUint8, {3, 50, 50})},
                                      std::vector<std::vector<std::vector<std::byte>>>{});
  ASSERT_OK_AND_ASSIGN(DecodeChoice choice, ChooseDecode(padded, *dataset, "", 4));
  EXPECT_EQ(choice.decode, Decode::kCpu);
  EXPECT_THAT(choice.note, HasSubstr("leave Pad"));
  ASSERT_OK_AND_ASSIGN(choice, ChooseDecode(Spec(Decode::kAuto), *tensors, "", 4));
  EXPECT_THAT(choice.note, HasSubstr("no image files"));
  ASSERT_OK_AND_ASSIGN(choice, ChooseDecode(Spec(Decode::kAuto), *dataset, "it has no nvJPEG", 4));
  EXPECT_EQ(choice.note, "it has no nvJPEG");
  // What was decided once is not decided again.
  for (FeedSpec spec : {Spec(Decode::kGpu), Spec(Decode::kAuto, 500)}) {
    EXPECT_THAT(ChooseDecode(spec, *dataset, "it has no nvJPEG", 4),
                StatusIs(Code::kFailedPrecondition, HasSubstr("it has no nvJPEG")));
    EXPECT_THAT(ChooseDecode(spec, *tensors, "", 4), StatusIs(Code::kInvalidArgument, HasSubstr("no image")));
    spec.transforms = padded.transforms;
    EXPECT_THAT(ChooseDecode(spec, *dataset, "", 4), StatusIs(Code::kInvalidArgument, HasSubstr("Pad")));
  }
}

}  // namespace
}  // namespace pinfeed
