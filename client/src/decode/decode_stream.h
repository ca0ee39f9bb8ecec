// SPDX-License-Identifier: Apache-2.0
// The stream of a decoder's kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "client/src/gpu/convert_kernel.h"
#include "common/base/result.h"
#include "common/cuda/stream.h"

namespace pinfeed {

// Purpose: queues a decoder's work on a stream of its own, which goes before the trainer's. Owns the stream
// and an event. Threads: one at a time. Precondition of all: the GPU's context is current. Errors: those of
// the driver.
class DecodeStream {
 public:
  static Result<std::unique_ptr<DecodeStream>> Create(std::shared_ptr<const CudaDevice> device);

  CUstream native() const { return stream_.get().native; }
  // From page-locked memory.
  Status Copy(CUdeviceptr to, const void* from, uint64_t bytes);
  Status Zero(CUdeviceptr to, uint64_t bytes);
  Status Poison(const DecodeImages& work) { return kernel_->Poison(work, native()); }
  Status Launch(const DecodeImages& work) { return kernel_->Launch(work, native()); }
  // Until all is done, without using the processor meanwhile.
  Status Wait();
  // The same after an error: what was queued must not outlive its caller.
  void Drain();

 private:
  DecodeStream(std::shared_ptr<const CudaDevice> device, std::shared_ptr<const ConvertKernel> kernel)
      : device_(std::move(device)), kernel_(std::move(kernel)) {}
  Status Open();

  const std::shared_ptr<const CudaDevice> device_;
  const std::shared_ptr<const ConvertKernel> kernel_;
  UniqueCudaStream stream_;
  UniqueCudaEvent done_;
};

}  // namespace pinfeed
