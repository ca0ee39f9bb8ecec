// SPDX-License-Identifier: Apache-2.0
#include "tests/support/stand_in_cuda/samples_kernel.h"

#include "tests/support/samples_on_host.h"
#include "tests/support/stand_in_cuda/stand_in.h"

namespace pinfeed::stand_in {
namespace {

bool ImagesAreReachable(const GatherSamples& work, unsigned element_bytes) {
  const uint64_t source = uint64_t{work.view.source_height} * work.view.source_width * work.channels;
  const uint64_t out = uint64_t{work.view.height} * work.view.width * work.channels * element_bytes;
  return IsReachable(AddressOf(work.pixels), work.dataset_samples * source, Rights::kRead) &&
         IsReachable(AddressOf(work.out), work.samples * out, Rights::kReadWrite);
}

bool CopyIsReachable(const GatherSamples& work, const SampleCopy& copy) {
  return copy.bytes == 0 ||
         (IsReachable(AddressOf(copy.source), work.dataset_samples * copy.bytes, Rights::kRead) &&
          IsReachable(AddressOf(copy.out), work.samples * copy.bytes, Rights::kReadWrite));
}

}  // namespace

CUresult RunSamples(const GatherSamples& work, unsigned element_bytes) {
  if (work.samples == 0) return CUDA_SUCCESS;
  const bool possible = work.copy_count <= kMaxSampleCopies && (work.channels == 1 || work.channels == 3);
  if (!possible && work.pixels != nullptr) return CUDA_ERROR_LAUNCH_FAILED;
  if (!IsReachable(AddressOf(work.indexes), work.samples * sizeof(uint32_t), Rights::kRead))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  for (uint32_t i = 0; i < work.copy_count; ++i)
    if (!CopyIsReachable(work, work.copies[i])) return CUDA_ERROR_ILLEGAL_ADDRESS;
  if (work.pixels != nullptr && !ImagesAreReachable(work, element_bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  MakeSamplesOnHost(work, element_bytes);
  return CUDA_SUCCESS;
}

}  // namespace pinfeed::stand_in
