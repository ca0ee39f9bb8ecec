// SPDX-License-Identifier: Apache-2.0
// A trainer's kernel that goes on writing to a slot until its time is over: death.py kills the trainer
// meanwhile.
#include <cstdint>

extern "C" __global__ void Scribble(std::uint32_t* words, std::uint64_t count, std::uint64_t nanoseconds) {
  std::uint64_t start;
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  std::uint32_t round = 0;
  do {
    for (std::uint64_t i = blockIdx.x * std::uint64_t(blockDim.x) + threadIdx.x; i < count;
         i += std::uint64_t(gridDim.x) * blockDim.x) {
      words[i] = 0xDEAD0000U + round;
    }
    ++round;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}
