// SPDX-License-Identifier: Apache-2.0
// What the fused kernel is told. Read by the host and by the device compiler.
#pragma once

#include <stdint.h>

namespace pinfeed {

// A tensor that the trainer gets as it lies in the slot.
struct TensorCopy {
  const uint8_t* source;
  uint8_t* out;
  uint64_t bytes;
};
inline constexpr uint32_t kMaxTensorCopies = 16;

// One launch writes a batch: it turns the uint8 pixels into the tensor that the trainer gets (mirrored, cast,
// scaled, normalised and laid out anew), and copies what else is in the batch; each launch and each copy of
// its own would cost the trainer's thread some microseconds. All the arithmetic lies in `table`, which holds
// what becomes of each of the 256 values of each channel: computed once, by the code that also serves tensors
// on the host, so that both give the same bytes. The whole struct is the kernel's one parameter, by value
// (CUDA takes 4 KiB).
struct ConvertImage {
  const uint8_t*
      source;           // samples * height * width * channels bytes; sample_stride bytes from one to the next
  const uint8_t* mark;  // a byte a sample: 0: as it is, 1: mirrored, 2: zeros in place of it; or NULL: all 0
  void* out;            // samples * height * width * channels elements, dense
  uint64_t sample_stride;
  uint32_t samples;  // 0: no pixels, and what is told of them does not matter
  uint32_t height;
  uint32_t width;
  uint32_t channels;        // 1 or 3
  uint32_t source_chw;      // 1: planes; 0: interleaved
  uint32_t out_chw;         // likewise
  uint32_t table[3 * 256];  // 256 entries a channel, each the bits of one element in its low bytes
  uint32_t copy_count;      // at most kMaxTensorCopies
  TensorCopy copies[kMaxTensorCopies];
};
static_assert(sizeof(ConvertImage) <= 4096, "what a kernel's parameters may have");

// One kernel an element size. Any grid; blocks of kConvertThreads in one dimension.
inline constexpr unsigned kConvertThreads = 256;
inline constexpr const char* kConvertKernel1 = "ConvertImage1";  // uint8
inline constexpr const char* kConvertKernel2 = "ConvertImage2";  // float16, bfloat16
inline constexpr const char* kConvertKernel4 = "ConvertImage4";  // float32

}  // namespace pinfeed
