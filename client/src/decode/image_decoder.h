// SPDX-License-Identifier: Apache-2.0
// Decodes the images of a batch on the trainer's GPU. In: JPEG bytes in page-locked host memory, and a plan
// for each (common/wire/image_plan.h). Out: uint8 pixels of the feed's size in device memory, as the daemon's
// workers make them, except that the GPU's inverse DCT may round otherwise.
#pragma once

#include <cuda.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "client/src/decode/decode_engine.h"
#include "client/src/decode/decode_stream.h"
#include "client/src/decode/engine_pixels.h"
#include "client/src/decode/jpeg_engines.h"
#include "client/src/gpu/pinned_memory.h"
#include "common/base/random.h"
#include "common/base/result.h"
#include "common/cuda/device.h"
#include "common/cuda/device_memory.h"
#include "common/cuda/nvjpeg.h"

namespace pinfeed {

// Purpose: decodes images with the GPU's JPEG engines, then crops, resizes and flips them with one kernel.
// Has another name than the daemon's ImageDecoder, because tests link both. Owns: handles of nvJPEG, a
// stream, and all of its device memory, which is fixed (kPixelBytes and a little). nvJPEG allocates memory of
// its own besides. Threads: one at a time; decode threads have one object each. Nothing invalidates a graph
// that another thread captures meanwhile. Errors: Create returns kUnavailable if there is no nvJPEG, or the
// GPU has no JPEG engines. Decode returns an error only if the GPU or the driver fails; then no output is
// defined, and nothing writes to them any more unless the context is broken. Images that cannot be decoded
// are in `failures`. Invariants: 1. No output is reported as complete that the engine has skipped. 2. The
// engine's memory is written only when the host has seen its last reader complete. 3. Nothing is written
// outside the outputs, whatever the plans and the streams contain.
class GpuImageDecoder {
 public:
  static constexpr size_t kMaxImages = DecodeWorker::kMaxImages;
  static constexpr uint64_t kPixelBytes = uint64_t{80} << 20;

  struct Options {
    uint32_t height = 0;  // of the output
    uint32_t width = 0;
    uint32_t channels = 3;  // 3, or 1: the luma
  };
  // Preconditions: no option is 0; channels is 1 or 3.
  static Result<std::unique_ptr<GpuImageDecoder>> Create(std::shared_ptr<const CudaDevice> device,
                                                         const Options& options);
  // With these functions instead of those of the loaded nvJPEG: for tests. They outlive the decoder.
  static Result<std::unique_ptr<GpuImageDecoder>> Create(std::shared_ptr<const CudaDevice> device,
                                                         const Options& options, const NvJpeg& nvjpeg);
  ~GpuImageDecoder();
  GpuImageDecoder(const GpuImageDecoder&) = delete;
  GpuImageDecoder& operator=(const GpuImageDecoder&) = delete;

  // As DecodeWorker::Decode. Preconditions: the files are in page-locked memory; no plan is of kPixels; no
  // work of the GPU uses the outputs.
  Status Decode(std::span<const ImageToDecode> images, std::span<Status> failures);
  // Images so far that the engines left out or refused, and that were decoded without them.
  uint64_t decoded_again() const { return decoded_again_; }

 private:
  // What the GPU and the host pass each other, in page-locked memory. Whole pages: registering takes no less.
  struct alignas(4096) HostPages {
    DecodedImage images[kMaxImages];
    uint32_t unwritten[kMaxImages];  // written by the GPU
  };
  // One image of a chunk that the kernel makes; pages().images has the rest.
  struct Made {
    size_t index = 0;  // in Decode's spans
    EnginePixels pixels = {};
    ImageRegion region = {};
    bool on_engine = false;
    bool again = false;  // to be decoded without the engines
  };
  // The images whose pixels have room at once.
  struct Chunk {
    std::array<Made, kMaxImages> made;
    size_t count = 0;
    uint64_t used = 0;  // bytes of pixels_
  };

  GpuImageDecoder(std::shared_ptr<const CudaDevice> device, const Options& options)
      : device_(std::move(device)), options_(options) {}
  Status Open(const NvJpeg& api);
  Result<bool> AddImage(const ImageToDecode& image, size_t index, Status& failure);
  Status PlanImage(const ImageToDecode& image, Made& made, DecodedImage& job);
  Status RunChunk(std::span<const ImageToDecode> images, std::span<Status> failures);
  void RunEngines(std::span<const ImageToDecode> images);
  Status DecodeAgain(const ImageToDecode& image, size_t made, Status& failure);
  Status CopyJobs(size_t first, size_t count);
  DecodeImages JobsOf(size_t first, size_t count) const;
  CUdeviceptr AddressOf(const EnginePixels& pixels) const { return pixels_.address() + pixels.offset; }
  JpegEngines::Work WorkOf(const ImageToDecode& image, const Made& made) const;
  HostPages& pages() const { return *reinterpret_cast<HostPages*>(host_->bytes().data()); }

  const std::shared_ptr<const CudaDevice> device_;
  const Options options_;
  // A filler of the engine's memory that 8 bytes of a picture hardly ever are, and that is not 0.
  const uint64_t poison_ = std::bit_cast<uint64_t>(RandomBytes<std::array<std::byte, 8>>()) | 1;
  std::optional<JpegEngines> engines_;  // these are there after Open
  std::unique_ptr<DecodeStream> stream_;
  std::unique_ptr<const PinnedMemory> host_;  // HostPages
  DeviceMemory pixels_;                       // as the engines write them
  DeviceMemory images_;                       // DecodedImage[kMaxImages]
  Chunk chunk_;
  uint64_t decoded_again_ = 0;
};

}  // namespace pinfeed
