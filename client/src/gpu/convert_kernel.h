// SPDX-License-Identifier: Apache-2.0
// Loads and launches the kernels of client/kernels in the trainer's context.
#pragma once

#include <memory>

#include "client/kernels/convert_image.h"
#include "client/kernels/decode_images.h"
#include "client/kernels/gather_rows.h"
#include "client/kernels/gather_samples.h"
#include "common/base/result.h"
#include "common/cuda/device.h"

namespace pinfeed {

// Purpose: launches the kernels that ConvertImage, GatherRows, GatherSamples, and DecodeImages describe.
// Owns: a share of the device. The loaded module stays for the life of the process, because kernels may still
// be queued when the last feed is closed. Threads: any.
class ConvertKernel {
 public:
  // Returns the kernel of a GPU. Loads it at the first call for that GPU; later calls share it.
  static Result<std::shared_ptr<const ConvertKernel>> For(const std::shared_ptr<const CudaDevice>& device);

  // Queues one launch on `stream`. `element_bytes` is the size of an output element: 1, 2 or 4. Precondition:
  // the device's context is current, and every pointer in `work` belongs to that device.
  Status Launch(const ConvertImage& work, size_t element_bytes, CUstream stream) const;
  Status Launch(const GatherRows& work, CUstream stream) const;
  Status Launch(const GatherSamples& work, size_t element_bytes, CUstream stream) const;
  // Puts work.poison into the pixels' places.
  Status Poison(const DecodeImages& work, CUstream stream) const;
  // Checks that the pixels were written, unless work.poison is 0, then makes the images.
  Status Launch(const DecodeImages& work, CUstream stream) const;

 private:
  explicit ConvertKernel(std::shared_ptr<const CudaDevice> device) : device_(std::move(device)) {}
  // 1, 2 and 4 are the sizes of the outputs' elements, in bytes.
  enum Kernel {
    kConvert1,
    kConvert2,
    kConvert4,
    kGather,
    kDecode,
    kCheck,
    kPoison,
    kSamples1,
    kSamples2,
    kSamples4
  };
  Status Load();
  // The kernel of a size, of which `of_one_byte` is the first, by at least so many threads, if the GPU runs
  // as many at once.
  Status StartThreads(Kernel of_one_byte, size_t element_bytes, uint64_t threads, const void* work,
                      CUstream stream) const;
  // `work`: the kernel's parameter. A grid of `across` x `down` blocks.
  Status Start(Kernel kernel, uint64_t across, unsigned down, const void* work, CUstream stream) const;

  const std::shared_ptr<const CudaDevice> device_;
  CUfunction functions_[kSamples4 + 1] = {};  // by Kernel
  uint64_t max_blocks_ = 0;                   // of one launch: as many as the GPU runs at once
};

}  // namespace pinfeed
