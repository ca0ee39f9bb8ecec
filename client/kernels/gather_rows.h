// SPDX-License-Identifier: Apache-2.0
// The parameters of the kernel that puts packed rows in order. Compiled for the host and the device.
#pragma once

#include <stdint.h>

namespace pinfeed {

// Copies the rows of a packed tensor, sample by sample, so that they lie in the order of the samples without
// gaps. An extent is two numbers: a sample's first row, and its number of rows. A sample that has rows
// outside of the source, or no room in `out`, is copied without rows. The struct is the kernel's only
// parameter.
struct GatherRows {
  const uint8_t* source;          // source_rows * row_bytes bytes
  const int64_t* source_extents;  // of each sample, in `source`
  uint8_t* out;                   // max_rows * row_bytes bytes
  int64_t* out_extents;           // of each sample, in `out`
  uint64_t row_bytes;
  uint64_t source_rows;
  uint64_t max_rows;
  uint32_t samples;
};

// One block a sample, of kGatherThreads.
inline constexpr unsigned kGatherThreads = 256;
inline constexpr const char* kGatherKernel = "GatherRows";

}  // namespace pinfeed
