// SPDX-License-Identifier: Apache-2.0
// A stateless random number generator: (key, counter) in, 128 random bits out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pinfeed {

// A round of Philox4x32.
constexpr void PhiloxRound(uint32_t& word0, uint32_t& word1, uint32_t& word2, uint32_t& word3,
                           const std::array<uint32_t, 2>& key) {
  const uint64_t a = uint64_t{0xD2511F53} * word0;
  const uint64_t b = uint64_t{0xCD9E8D57} * word2;
  word0 = static_cast<uint32_t>(b >> 32) ^ word1 ^ key[0];
  word1 = static_cast<uint32_t>(b);
  word2 = static_cast<uint32_t>(a >> 32) ^ word3 ^ key[1];
  word3 = static_cast<uint32_t>(a);
}

// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11,
// section 3.4.
constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    PhiloxRound(counter[0], counter[1], counter[2], counter[3], key);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Writes the numbers of that counter and of those behind it, which differ in their first word only. The
// blocks go side by side, of which compilers make vector instructions: two to three times as quick.
template <size_t kBlocks>
void Philox4x32Blocks(const std::array<uint32_t, 4>& counter, std::array<uint32_t, 2> key,
                      std::array<uint32_t, 4 * kBlocks>& numbers) {
  std::array<uint32_t, kBlocks> words[4];
  for (size_t word = 0; word < 4; ++word) words[word].fill(counter[word]);
  for (size_t i = 0; i < kBlocks; ++i) words[0][i] += static_cast<uint32_t>(i);
  for (int round = 0; round < 10; ++round) {
    for (size_t i = 0; i < kBlocks; ++i) PhiloxRound(words[0][i], words[1][i], words[2][i], words[3][i], key);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  for (size_t i = 0; i < 4 * kBlocks; ++i) numbers[i] = words[i % 4][i / 4];
}

}  // namespace pinfeed
