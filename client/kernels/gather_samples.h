// SPDX-License-Identifier: Apache-2.0
// The parameters of the kernel that makes a batch of resident samples. Compiled for the host and the device.
#pragma once

#include <stdint.h>

#include "client/kernels/convert_image.h"
#include "common/spec/sample_view.h"

namespace pinfeed {

// Gathers one tensor's samples unchanged. The resident samples lie one behind the other.
struct SampleCopy {
  const uint8_t* source;  // of sample 0
  uint8_t* out;           // the batch's samples, dense
  uint64_t bytes;         // of a sample
};
inline constexpr uint32_t kMaxSampleCopies = 12;

// One launch writes a batch: it takes the samples that `indexes` lists, flips and crops the image of each as
// its view says, and converts the pixels by `table` (see ConvertImage). The struct is the kernel's only
// parameter, passed by value (CUDA allows 4 KiB).
struct GatherSamples {
  // Per sample of the batch, in page-locked host memory: its number; with the highest bit, the image is
  // zeros. One that is not below dataset_samples is taken as sample 0 with an image of zeros.
  const uint32_t* indexes;
  uint32_t samples;
  uint32_t dataset_samples;
  uint64_t epoch;         // of the batch
  const uint8_t* pixels;  // of the resident image of sample 0; NULL: no image, its fields are ignored
  void* out;
  SampleView view;
  uint32_t channels;        // 1 or 3
  uint32_t source_chw;      // 1: planar; 0: interleaved
  uint32_t out_chw;         // 1: planar; 0: interleaved
  uint32_t table[3 * 256];  // 256 entries per channel, each with an element's bits in its low bytes
  uint32_t copy_count;      // at most kMaxSampleCopies
  SampleCopy copies[kMaxSampleCopies];
};
static_assert(sizeof(GatherSamples) <= 4096, "what a kernel's parameters may have");

// One kernel per element size. Blocks and grid as those of ConvertImage.
inline constexpr const char* kSamplesKernel1 = "GatherSamples1";  // uint8
inline constexpr const char* kSamplesKernel2 = "GatherSamples2";  // float16, bfloat16
inline constexpr const char* kSamplesKernel4 = "GatherSamples4";  // float32

}  // namespace pinfeed
