// SPDX-License-Identifier: Apache-2.0
// The fused kernel's parameters. Compiled for the host and the device.
#pragma once

#include <stdint.h>

namespace pinfeed {

// Copies a tensor from the slot to the trainer unchanged.
struct TensorCopy {
  const uint8_t* source;
  uint8_t* out;
  uint64_t bytes;
};
inline constexpr uint32_t kMaxTensorCopies = 16;

// One launch writes a batch: it converts the uint8 pixels into the trainer's tensor (mirrored, cast, scaled,
// normalised, transposed) and copies the batch's other tensors. Separate launches and copies would each cost
// the trainer's thread some microseconds. `table` holds all arithmetic: the result for each of the 256 values
// of each channel. The host code computes it, so that tensors on the host and on the GPU have the same bytes.
// The struct is the kernel's only parameter, passed by value (CUDA allows 4 KiB).
struct ConvertImage {
  const uint8_t* source;  // samples * height * width * channels bytes; samples are sample_stride bytes apart
  const uint8_t* mark;    // one byte per sample: 0: as is, 1: mirrored, 2: written as zeros; NULL: all 0
  void* out;              // samples * height * width * channels elements, dense
  uint64_t sample_stride;
  uint32_t samples;  // 0: no pixels, the other pixel fields are ignored
  uint32_t height;
  uint32_t width;
  uint32_t channels;        // 1 or 3
  uint32_t source_chw;      // 1: planar; 0: interleaved
  uint32_t out_chw;         // 1: planar; 0: interleaved
  uint32_t table[3 * 256];  // 256 entries per channel, each with an element's bits in its low bytes
  uint32_t copy_count;      // at most kMaxTensorCopies
  TensorCopy copies[kMaxTensorCopies];
};
static_assert(sizeof(ConvertImage) <= 4096, "what a kernel's parameters may have");

// One kernel per element size. Any grid size; one-dimensional blocks of kConvertThreads. A multiprocessor
// runs kConvertBlocks at once. Further ones would start when these end, and leave most of the GPU idle.
inline constexpr unsigned kConvertThreads = 256;
inline constexpr unsigned kConvertBlocks = 4;
inline constexpr uint32_t kGroupPixels = 8;                      // of a row, which a thread handles at once
inline constexpr const char* kConvertKernel1 = "ConvertImage1";  // uint8
inline constexpr const char* kConvertKernel2 = "ConvertImage2";  // float16, bfloat16
inline constexpr const char* kConvertKernel4 = "ConvertImage4";  // float32

}  // namespace pinfeed
