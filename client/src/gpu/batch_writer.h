// SPDX-License-Identifier: Apache-2.0
// Writes a batch to the trainer's tensors. In: the batch's tensors in memory of the GPU. Out: launches of the
// client's kernels on the trainer's stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/gpu/convert_kernel.h"
#include "client/src/gpu/output_memory.h"
#include "client/src/link/offer.h"
#include "common/base/result.h"

namespace pinfeed {

// Purpose: queues the kernels that make the outputs of an offer. Borrows the offer, which outlives it.
// Threads: any. Errors: the driver's.
class BatchWriter {
 public:
  // Tensor i of a batch lies offsets[i] bytes behind its start; of an image that was decoded, the pixels.
  BatchWriter(const FeedOffer& offer, std::vector<uint64_t> offsets,
              std::shared_ptr<const ConvertKernel> kernel)
      : offer_(offer), offsets_(std::move(offsets)), kernel_(std::move(kernel)) {}

  // Queues the writing of every output to outputs[i]. Precondition: the GPU's context is current.
  Status Queue(const std::byte* start, uint32_t samples, const OutputMemory& outputs, CUstream stream) const;

 private:
  // `number`: of the packed output.
  Status GatherRows(const std::byte* start, uint32_t samples, size_t number, const OutputMemory& outputs,
                    CUstream stream) const;
  void AddImage(const std::byte* start, uint32_t samples, const OfferedOutput& output, void* out,
                ConvertImage& work) const;

  const FeedOffer& offer_;
  const std::vector<uint64_t> offsets_;
  const std::shared_ptr<const ConvertKernel> kernel_;
};

}  // namespace pinfeed
