// SPDX-License-Identifier: Apache-2.0
// What decode_images.cc and decode_faults.cc share: files in page-locked memory, plans, outputs on the GPU,
// and the pixels that the daemon's workers make.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "client/src/decode/image_decoder.h"
#include "common/cuda/device_memory.h"
#include "common/cuda/stream.h"
#include "tests/support/planned_images.h"
#include "tests/support/transform_specs.h"

namespace pinfeed {

// Ends the program with a message unless `status` is OK.
inline void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "decode_images: %s\n", status.ToString().c_str());
  std::exit(1);
}
template <typename T>
T Require(Result<T> result) {
  Require(result.status());
  return std::move(result).value();
}

using File = std::vector<std::byte>;

// Purpose: page-locked memory for the files of one chunk. Threads: one.
class PinnedFiles {
 public:
  PinnedFiles(std::shared_ptr<const CudaDevice> device, size_t bytes);
  // Copies a file behind the others; the place stays valid until Clear.
  std::span<const std::byte> Add(std::span<const std::byte> file);
  void Clear() { used_ = 0; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const size_t bytes_;
  const std::unique_ptr<std::byte, Free> memory_;
  HostRegistration registration_;
  size_t used_ = 0;
};

// One image with what it should become.
struct Expectation {
  const File* file = nullptr;
  ImagePlan plan{};
  std::vector<uint8_t> pixels;
};

// Differences of pixels, in levels.
struct Difference {
  uint64_t values = 0;
  uint64_t sum = 0;
  uint64_t over_eight = 0;
  double worst_image = 0;  // mean of the worst image

  void Add(const std::vector<uint8_t>& made, const std::vector<uint8_t>& expected);
  double mean() const { return values == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(values); }
  double within_eight() const {
    return values == 0 ? 1 : 1 - static_cast<double>(over_eight) / static_cast<double>(values);
  }
  // The tolerance: 1.5 levels on average, 99.9% within 8.
  bool ok() const { return mean() <= 1.5 && within_eight() >= 0.999; }
};

// Purpose: a decoder, memory for its outputs, and a worker's path beside it. Threads: one.
class DecodeFixture {
 public:
  static constexpr uint32_t kSide = 224;
  explicit DecodeFixture(std::shared_ptr<const CudaDevice> device,
                         const GpuImageDecoder::Options& options = {.height = kSide, .width = kSide},
                         const NvJpeg* nvjpeg = nullptr);

  // The file as sample number `sample` of the chain; nullopt if the client's decoder cannot follow the plan.
  std::optional<Expectation> Expect(const File& file, const TransformChain& chain, uint64_t sample);
  // Puts the files into page-locked memory, in place of those before; outputs begin at number `first`.
  std::vector<ImageToDecode> Encode(const std::vector<Expectation>& images, size_t first = 0);
  void Decode(const std::vector<Expectation>& images, std::vector<Status>& failures, size_t first = 0) {
    Require(TryDecode(images, failures, first));
  }
  Status TryDecode(const std::vector<Expectation>& images, std::vector<Status>& failures, size_t first = 0);
  // Reads back output number i.
  std::vector<uint8_t> Output(size_t i) const;
  // The difference of all outputs from what was expected.
  Difference Compare(const std::vector<Expectation>& images) const;

  CUdeviceptr OutputAddress(size_t i) const { return outputs_.address() + i * output_bytes(); }
  std::byte* OutputPointer(size_t i) const {
    return reinterpret_cast<std::byte*>(OutputAddress(i));  // NOLINT(performance-no-int-to-ptr)
  }
  size_t output_bytes() const { return size_t{3} * options_.height * options_.width; }
  GpuImageDecoder& decoder() { return *decoder_; }
  const std::shared_ptr<const CudaDevice>& device() const { return device_; }

 private:
  const std::shared_ptr<const CudaDevice> device_;
  const GpuImageDecoder::Options options_;
  std::unique_ptr<GpuImageDecoder> decoder_;
  DeviceMemory outputs_;
  PinnedFiles files_;
  WorkerPath worker_;
};

// `count` samples of a crop of random place and size, as in training.
std::vector<Expectation> RandomCrops(DecodeFixture& fixture, const std::vector<File>& photos, size_t count);

// All JPEG files below a folder, at most `count`.
std::vector<File> ReadFiles(const std::filesystem::path& folder, size_t count);

// Each returns whether it passed, and prints what it found.
bool TestDamage(const std::shared_ptr<const CudaDevice>& device, const std::vector<File>& photos);
bool TestSkippedImages(const std::shared_ptr<const CudaDevice>& device, const std::vector<File>& photos);
bool TestQueuedReaders(const std::shared_ptr<const CudaDevice>& device, const std::vector<File>& photos);
bool TestGraphCapture(const std::shared_ptr<const CudaDevice>& device, const std::vector<File>& photos);
void MeasureRates(const std::shared_ptr<const CudaDevice>& device, const std::vector<File>& photos,
                  double seconds);

}  // namespace pinfeed
