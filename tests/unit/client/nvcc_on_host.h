// SPDX-License-Identifier: Apache-2.0
// What nvcc gives, for device code that is included into one file of tests and runs on the host. A block is
// as many threads of the host as blockDim says.
#pragma once

#include <algorithm>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "client/kernels/convert_image.h"

#define __device__
#define __global__
#define __grid_constant__
#define __shared__ static
#define __launch_bounds__(...)
namespace pinfeed {

struct float4 {
  float x, y, z, w;
};

namespace {

struct Dim {
  unsigned x;
  unsigned y;
};
thread_local Dim threadIdx, blockIdx;
Dim gridDim;
Dim blockDim{kConvertThreads, 1};
std::barrier<> block_barrier(kConvertThreads);
void __syncthreads() {
  if (blockDim.x > 1) block_barrier.arrive_and_wait();
}
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
// Of sums that are normal numbers from 2^23 on, whose floats are the whole numbers.
float __fadd_rd(float a, float b) {
  return static_cast<float>(std::floor(double{a} + double{b}));
}
uint32_t __float_as_uint(float value) {
  return std::bit_cast<uint32_t>(value);
}
uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (shift & 31));
}
uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  return result;
}
unsigned long long atomicAdd(unsigned long long* sum, unsigned long long value) {
  return __atomic_fetch_add(sum, value, __ATOMIC_RELAXED);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return std::min<std::common_type_t<A, B>>(a, b);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return std::max<std::common_type_t<A, B>>(a, b);
}

}  // namespace
}  // namespace pinfeed
using pinfeed::blockDim;
using pinfeed::blockIdx;
using pinfeed::gridDim;
using pinfeed::threadIdx;
