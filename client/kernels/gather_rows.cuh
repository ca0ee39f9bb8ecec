// SPDX-License-Identifier: Apache-2.0
// Puts packed rows in order, on the trainer's stream. Each block finds out where the rows of its sample go:
// it adds up the numbers of rows of the samples before. There are few samples, and their extents stay in the
// cache.
#pragma once

#include "client/kernels/copy_words.cuh"
#include "client/kernels/gather_rows.h"

namespace pinfeed {

// The sample's number of rows; 0 if its extent does not lie within the source.
__device__ inline uint64_t RowsOf(const GatherRows& work, uint32_t sample) {
  const uint64_t first = uint64_t(work.source_extents[2 * sample]);
  const uint64_t count = uint64_t(work.source_extents[2 * sample + 1]);
  return first <= work.source_rows && count <= work.source_rows - first ? count : 0;
}

__device__ inline void Gather(const GatherRows& work) {
  const uint32_t sample = blockIdx.x;
  __shared__ unsigned long long first;
  if (threadIdx.x == 0) first = 0;
  __syncthreads();
  unsigned long long before = 0;
  for (uint32_t i = threadIdx.x; i < sample; i += blockDim.x) before += RowsOf(work, i);
  if (before != 0) atomicAdd(&first, before);
  __syncthreads();
  const uint64_t rows = RowsOf(work, sample);
  if (threadIdx.x == 0) {
    work.out_extents[2 * sample] = int64_t(first);
    work.out_extents[2 * sample + 1] = int64_t(rows);
  }
  if (rows == 0) return;
  CopyBytes({work.source + uint64_t(work.source_extents[2 * sample]) * work.row_bytes,
             work.out + first * work.row_bytes, rows * work.row_bytes},
            threadIdx.x, blockDim.x);
}

}  // namespace pinfeed

extern "C" __global__ void __launch_bounds__(pinfeed::kGatherThreads)
    GatherRows(const __grid_constant__ pinfeed::GatherRows work) {
  pinfeed::Gather(work);
}
