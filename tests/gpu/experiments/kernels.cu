// SPDX-License-Identifier: Apache-2.0
//
// The few kernels of the experiments, loaded as a module: what a trainer would launch. A buffer's right
// content is a pure function of (seed, index), so that any process can check it.
#include <cstdint>

namespace {

__device__ std::uint64_t NanoTime() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__device__ std::uint32_t Word(std::uint64_t index, std::uint32_t seed) {
  return std::uint32_t(index) * 2654435761U + seed * 40503U;
}

}  // namespace

extern "C" __global__ void Fill(std::uint32_t* words, std::uint64_t count, std::uint32_t seed) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t(blockDim.x) + threadIdx.x; i < count;
       i += std::uint64_t(gridDim.x) * blockDim.x) {
    words[i] = Word(i, seed);
  }
}

// Adds the number of wrong words to *wrong. `cached` reads through the read-only path that compilers choose
// for const restrict data.
extern "C" __global__ void CountWrong(const std::uint32_t* words, std::uint64_t count, std::uint32_t seed,
                                      int cached, unsigned long long* wrong) {
  unsigned long long mine = 0;
  for (std::uint64_t i = blockIdx.x * std::uint64_t(blockDim.x) + threadIdx.x; i < count;
       i += std::uint64_t(gridDim.x) * blockDim.x) {
    std::uint32_t word = cached != 0 ? __ldg(words + i) : words[i];
    mine += word == Word(i, seed) ? 0 : 1;
  }
  if (mine != 0) atomicAdd(wrong, mine);
}

// Counts up in the words (either may be null) until the time is over: the first thread in the host's word,
// all threads in the device's.
extern "C" __global__ void Spin(volatile std::uint64_t* host_word, volatile std::uint64_t* device_word,
                                std::uint64_t nanoseconds) {
  const bool first = blockIdx.x == 0 && threadIdx.x == 0;
  const std::uint64_t start = NanoTime();
  for (std::uint64_t n = 1; NanoTime() - start < nanoseconds; ++n) {
    if (first && host_word != nullptr) *host_word = n;
    if (device_word != nullptr) *device_word = n;
    __nanosleep(2000);
  }
}

// Keeps the arithmetic units of the whole device busy, as a matrix product does, without touching memory.
extern "C" __global__ void Burn(float* out, int rounds) {
  float a = threadIdx.x;
  float b = a + 1;
  float c = a + 2;
  float d = a + 3;
  for (int i = 0; i < rounds; ++i) {
    a = a * 0.999F + 0.5F;
    b = b * 0.999F + 0.5F;
    c = c * 0.999F + 0.5F;
    d = d * 0.999F + 0.5F;
  }
  if (a + b + c + d == -1.0F) *out = a;
}
