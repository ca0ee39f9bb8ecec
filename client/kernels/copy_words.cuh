// SPDX-License-Identifier: Apache-2.0
// Copies bytes on the device by many threads. In: a TensorCopy, and the caller's number among the threads.
#pragma once

#include "client/kernels/convert_image.h"

namespace pinfeed {

// Each thread has four words in flight, enough to hide the memory's latency.
template <typename Word>
__device__ inline void CopyWords(const TensorCopy& copy, uint64_t thread, uint64_t threads) {
  const Word* const from = reinterpret_cast<const Word*>(copy.source);
  Word* const to = reinterpret_cast<Word*>(copy.out);
  const uint64_t words = copy.bytes / sizeof(Word);
  uint64_t i = thread;
  for (; i + 3 * threads < words; i += 4 * threads) {
    Word word[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) word[k] = from[i + k * threads];
#pragma unroll
    for (int k = 0; k < 4; ++k) to[i + k * threads] = word[k];
  }
  for (; i < words; i += threads) to[i] = from[i];
  if (const uint64_t done = words * sizeof(Word); thread < copy.bytes - done)
    copy.out[done + thread] = copy.source[done + thread];
}

__device__ inline void CopyBytes(const TensorCopy& copy, uint64_t thread, uint64_t threads) {
  const uintptr_t both = reinterpret_cast<uintptr_t>(copy.source) | reinterpret_cast<uintptr_t>(copy.out);
  if (both % sizeof(uint4) == 0) {
    CopyWords<uint4>(copy, thread, threads);
  } else if (both % sizeof(uint32_t) == 0) {
    CopyWords<uint32_t>(copy, thread, threads);
  } else {
    CopyWords<uint8_t>(copy, thread, threads);
  }
}

}  // namespace pinfeed
