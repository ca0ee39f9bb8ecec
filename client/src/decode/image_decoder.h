// SPDX-License-Identifier: Apache-2.0
// Decodes the images of a batch on the trainer's GPU. In: JPEG bytes in page-locked host memory, and a plan
// for each (common/wire/image_plan.h). Out: uint8 pixels of the feed's size in device memory, as the daemon's
// workers make them, except that the GPU's inverse DCT may round otherwise.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/result.h"
#include "common/cuda/device.h"
#include "common/cuda/nvjpeg.h"
#include "common/wire/image_plan.h"

namespace pinfeed {

// One image to be made.
struct EncodedImage {
  std::span<const std::byte> bytes;  // page-locked host memory; unchanged until Decode returns
  ImagePlan plan{};                  // a copy: what another process may still write is not read here
  CUdeviceptr out = 0;               // height * width * channels bytes, pixel by pixel (HWC)
};

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
  static constexpr size_t kMaxImages = 128;
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

  // Returns when every output is complete, as seen by the host. failures[i] is OK, or says why image i cannot
  // be decoded; its output is then zeros. Preconditions: at most kMaxImages images, none of kPixels;
  // `failures` has as many; no work of the GPU uses the outputs.
  Status Decode(std::span<const EncodedImage> images, std::span<Status> failures);
  // Images so far that the engines left out or refused, and that were decoded without them.
  uint64_t decoded_again() const;

 private:
  class Impl;
  explicit GpuImageDecoder(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace pinfeed
