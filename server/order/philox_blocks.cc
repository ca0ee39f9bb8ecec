// SPDX-License-Identifier: Apache-2.0
#include "server/order/philox_blocks.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>

#include "common/base/philox.h"

namespace pinfeed {
namespace {

#if defined(__x86_64__)
// Each 64-bit lane has a word of one block in its lower half. The upper half is any: products are made of
// lower halves alone, and the end drops the upper ones.
__attribute__((target("avx2"))) PhiloxNumbers BlocksAvx2(const std::array<uint32_t, 4>& counter,
                                                         std::array<uint32_t, 2> key) {
  constexpr size_t kLanes = 4;
  constexpr size_t kVectors = kPhiloxBlocks / kLanes;
  __m256i words[4][kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    const auto lane = static_cast<int64_t>(kLanes * v);
    words[0][v] = _mm256_add_epi64(_mm256_set1_epi64x(counter[0]),
                                   _mm256_set_epi64x(lane + 3, lane + 2, lane + 1, lane));
    for (size_t word = 1; word < 4; ++word) words[word][v] = _mm256_set1_epi64x(counter[word]);
  }
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const __m256i key0 = _mm256_set1_epi64x(key[0]);
    const __m256i key1 = _mm256_set1_epi64x(key[1]);
    for (size_t v = 0; v < kVectors; ++v) {
      const __m256i a = _mm256_mul_epu32(_mm256_set1_epi64x(kPhiloxFactor0), words[0][v]);
      const __m256i b = _mm256_mul_epu32(_mm256_set1_epi64x(kPhiloxFactor1), words[2][v]);
      words[0][v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), words[1][v]), key0);
      words[1][v] = b;
      words[2][v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), words[3][v]), key1);
      words[3][v] = a;
    }
    NextPhiloxKey(key);
  }
  PhiloxNumbers numbers;
  auto* const out = reinterpret_cast<__m256i*>(numbers.data());
  for (size_t v = 0; v < kVectors; ++v) {
    // Words 0 and 1, then 2 and 3, of each lane's block.
    const __m256i first = _mm256_blend_epi32(words[0][v], _mm256_slli_epi64(words[1][v], 32), 0xAA);
    const __m256i second = _mm256_blend_epi32(words[2][v], _mm256_slli_epi64(words[3][v], 32), 0xAA);
    const __m256i even = _mm256_unpacklo_epi64(first, second);  // blocks 0 and 2
    const __m256i odd = _mm256_unpackhi_epi64(first, second);   // blocks 1 and 3
    _mm256_storeu_si256(out + 2 * v, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(out + 2 * v + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }
  return numbers;
}
#endif

}  // namespace

PhiloxNumbers Philox4x32Blocks(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return BlocksAvx2(counter, key);
#endif
  PhiloxNumbers numbers;
  for (auto out = numbers.begin(); out != numbers.end(); out += 4, ++counter[0])
    std::ranges::copy(Philox4x32(counter, key), out);
  return numbers;
}

}  // namespace pinfeed
