// SPDX-License-Identifier: Apache-2.0
// One thread: a whole sample (JPEG 500 x 375, RandomResizedCrop 224, flip, normalised float32) beside what
// bounds it, a full decode by libjpeg-turbo and a resize of the whole image; and its parts.
#include <benchmark/benchmark.h>
#include <jpeglib.h>

#include <atomic>
#include <cstdio>  // jpeglib.h needs FILE
#include <memory>
#include <vector>

#include "server/image/decode.h"
#include "server/image/jpeg_markers.h"
#include "server/image/resize.h"
#include "server/loading/sample_loader.h"
#include "server/transform/pointwise.h"
#include "tests/support/transform_specs.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

constexpr int kWidth = 500;
constexpr int kHeight = 375;

const std::vector<std::byte>& Photo() {
  static const std::vector<std::byte> file = [] {
    JpegOptions options;
    options.width = kWidth;
    options.height = kHeight;
    return MakeJpeg(options, 1);
  }();
  return file;
}

// The library alone, with its defaults, as bare as it can be called.
void DecodeBare(const std::vector<std::byte>& file, uint8_t* out) {
  jpeg_decompress_struct cinfo{};
  jpeg_error_mgr error{};
  cinfo.err = jpeg_std_error(&error);
  jpeg_create_decompress(&cinfo);
  jpeg_mem_src(&cinfo, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&cinfo, TRUE);
  jpeg_start_decompress(&cinfo);
  while (cinfo.output_scanline < cinfo.output_height) {
    uint8_t* row = out + size_t{3} * cinfo.output_width * cinfo.output_scanline;
    jpeg_read_scanlines(&cinfo, &row, 1);
  }
  jpeg_finish_decompress(&cinfo);
  jpeg_destroy_decompress(&cinfo);
}

void BareDecode(benchmark::State& state) {
  std::vector<uint8_t> pixels(size_t{3} * kWidth * kHeight);
  for (auto _ : state) DecodeBare(Photo(), pixels.data());
  state.counters["file_bytes"] = static_cast<double>(Photo().size());
}
BENCHMARK(BareDecode);

void BareDecodeAndResize(benchmark::State& state) {
  std::vector<uint8_t> pixels(size_t{3} * kWidth * kHeight + kRowSlack);
  std::vector<uint8_t> out(size_t{3} * 224 * 224 + kRowSlack);
  ResizeScratch scratch;
  for (auto _ : state) {
    DecodeBare(Photo(), pixels.data());
    const ImageView image{pixels.data(), kWidth, kHeight, size_t{3} * kWidth};
    if (!ResizeImage(image, 224, 224, {}, {0, 0, 224, 224}, scratch, out.data()).ok())
      state.SkipWithError("resize");
  }
}
BENCHMARK(BareDecodeAndResize);

void ResizeWhole(benchmark::State& state) {
  std::vector<uint8_t> pixels(size_t{3} * kWidth * kHeight + kRowSlack);
  DecodeBare(Photo(), pixels.data());
  std::vector<uint8_t> out(size_t{3} * 224 * 224 + kRowSlack);
  ResizeScratch scratch;
  const ImageView image{pixels.data(), kWidth, kHeight, size_t{3} * kWidth};
  for (auto _ : state) {
    if (!ResizeImage(image, 224, 224, {}, {0, 0, 224, 224}, scratch, out.data()).ok())
      state.SkipWithError("resize");
  }
}
BENCHMARK(ResizeWhole);

void MarkerWalk(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(ScanJpegMarkers(Photo()).complete);
}
BENCHMARK(MarkerWalk);

void PointwiseTail(benchmark::State& state) {
  const auto dtype = static_cast<DType>(state.range(0));
  const auto layout = static_cast<ImageLayout>(state.range(1));
  std::vector<TransformSpec> transforms;
  if (dtype != DType::kUint8) transforms = {Normalize{{0.5}, {0.25}}, ToDtype{dtype, false}};
  const Pointwise pointwise(ChainOf(transforms), 3, layout);
  std::vector<uint8_t> pixels(size_t{3} * 224 * 224 + kRowSlack, 100);
  std::vector<std::byte> out(size_t{3} * 224 * 224 * DTypeSize(dtype));
  bool flip = false;
  for (auto _ : state) pointwise.Run({pixels.data(), 224, 224, size_t{3} * 224}, flip = !flip, out);
}
BENCHMARK(PointwiseTail)
    ->ArgNames({"dtype", "layout"})
    ->Args({static_cast<int>(DType::kFloat32), static_cast<int>(ImageLayout::kChw)})
    ->Args({static_cast<int>(DType::kBfloat16), static_cast<int>(ImageLayout::kChw)})
    ->Args({static_cast<int>(DType::kUint8), static_cast<int>(ImageLayout::kChw)})
    ->Args({static_cast<int>(DType::kFloat32), static_cast<int>(ImageLayout::kHwc)})
    ->Args({static_cast<int>(DType::kUint8), static_cast<int>(ImageLayout::kHwc)});

void Load(benchmark::State& state, std::vector<TransformSpec> geometry,
          PixelOpsAt tail_at = PixelOpsAt::kWorker) {
  const auto dataset = std::make_shared<MemoryDataset>(
      std::vector<Field>{EncodedField("image")}, std::vector<std::vector<std::vector<std::byte>>>{{Photo()}});
  FeedSpec spec;
  spec.transforms = std::move(geometry);
  spec.transforms.emplace_back(Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}});
  const auto loader = SampleLoader::Create(dataset, spec, tail_at);
  if (!loader.ok()) return state.SkipWithError(loader.status().message().c_str());
  std::vector<std::vector<std::byte>> tensors;
  for (const TensorSpec& output : loader.value()->outputs()) tensors.emplace_back(*output.SampleBytes());
  const std::vector<std::span<std::byte>> places(tensors.begin(), tensors.end());
  SampleScratch scratch;
  SampleTimes times;
  SampleKey key;
  for (auto _ : state) {
    ++key.epoch;  // another crop
    if (!loader.value()->Load(key, places, scratch, times).ok()) state.SkipWithError("load");
  }
}
void LoadTraining(benchmark::State& state) {
  Load(state, {RandomResizedCrop{224, 224}, RandomHorizontalFlip{}});
}
BENCHMARK(LoadTraining);
void LoadWholeImage(benchmark::State& state) {
  Load(state, {Resize{224, 224}, RandomHorizontalFlip{}});
}
BENCHMARK(LoadWholeImage);
void LoadValidation(benchmark::State& state) {
  Load(state, {Resize{0, 256}, CenterCrop{224, 224}});
}
BENCHMARK(LoadValidation);
// As for a trainer on a GPU, whose client does the pointwise end.
void LoadTrainingForClient(benchmark::State& state) {
  Load(state, {RandomResizedCrop{224, 224}, RandomHorizontalFlip{}}, PixelOpsAt::kClient);
}
BENCHMARK(LoadTrainingForClient);
// For a trainer whose GPU decodes: the file is checked and passed on.
void PassTrainingForGpu(benchmark::State& state) {
  const auto dataset = std::make_shared<MemoryDataset>(
      std::vector<Field>{EncodedField("image")}, std::vector<std::vector<std::vector<std::byte>>>{{Photo()}});
  FeedSpec spec;
  spec.transforms = {RandomResizedCrop{224, 224}, RandomHorizontalFlip{}};
  spec.decode = Decode::kGpu;
  const auto loader = SampleLoader::Create(dataset, spec, PixelOpsAt::kClient);
  if (!loader.ok()) return state.SkipWithError(loader.status().message().c_str());
  const BatchLayout layout = BatchLayout::Create(loader.value()->outputs(), 1).value();
  std::vector<std::byte> slot(layout.slot_bytes);
  std::vector<std::span<std::byte>> places;
  for (const TensorPlace& tensor : layout.tensors)
    places.push_back(std::span(slot).subspan(tensor.offset, tensor.sample_bytes));
  std::vector<std::atomic<uint64_t>> rows(layout.tensors.size());
  SampleScratch scratch;
  SampleTimes times;
  SampleKey key;
  for (auto _ : state) {
    ++key.epoch;
    for (auto& count : rows) count = 0;
    if (!loader.value()->Load(key, {places, layout, 0, rows}, scratch, times).ok())
      state.SkipWithError("load");
  }
}
BENCHMARK(PassTrainingForGpu);

}  // namespace
}  // namespace pinfeed
