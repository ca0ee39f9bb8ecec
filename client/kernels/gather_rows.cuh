// SPDX-License-Identifier: Apache-2.0
// Puts packed rows in order, on the trainer's stream. Each block finds out where the rows of its sample go:
// it adds up the numbers of rows of the samples before. There are few samples, and their extents stay in the
// cache.
#pragma once

#include "client/kernels/copy_words.cuh"
#include "client/kernels/gather_rows.h"

namespace pinfeed {

struct SourceRows {
  uint64_t first;
  uint64_t count;
};

// The sample's rows; none if its extent does not lie within the source. Read once, since a broken daemon may
// change it meanwhile.
__device__ inline SourceRows RowsOf(const GatherRows& work, uint32_t sample) {
  const volatile int64_t* const extent = work.source_extents + 2 * sample;
  const uint64_t first = uint64_t(extent[0]);
  const uint64_t count = uint64_t(extent[1]);
  const bool inside = first <= work.source_rows && count <= work.source_rows - first;
  return {first, inside ? count : 0};
}

__device__ inline void Gather(const GatherRows& work) {
  const uint32_t sample = blockIdx.x;
  __shared__ unsigned long long first;
  if (threadIdx.x == 0) first = 0;
  __syncthreads();
  unsigned long long before = 0;
  for (uint32_t i = threadIdx.x; i < sample; i += blockDim.x) before += RowsOf(work, i).count;
  if (before != 0) atomicAdd(&first, before);
  __syncthreads();
  SourceRows rows = RowsOf(work, sample);
  if (first > work.max_rows || rows.count > work.max_rows - first) rows.count = 0;
  if (threadIdx.x == 0) {
    work.out_extents[2 * sample] = int64_t(first);
    work.out_extents[2 * sample + 1] = int64_t(rows.count);
  }
  if (rows.count == 0) return;
  CopyBytes({work.source + rows.first * work.row_bytes, work.out + first * work.row_bytes,
             rows.count * work.row_bytes},
            threadIdx.x, blockDim.x);
}

}  // namespace pinfeed

extern "C" __global__ void __launch_bounds__(pinfeed::kGatherThreads)
    GatherRows(const __grid_constant__ pinfeed::GatherRows work) {
  pinfeed::Gather(work);
}
