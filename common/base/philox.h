// SPDX-License-Identifier: Apache-2.0
// A stateless random number generator: (key, counter) in, 128 random bits out.
#pragma once

#include <array>
#include <cstdint>

namespace pinfeed {

inline constexpr int kPhiloxRounds = 10;
inline constexpr uint32_t kPhiloxFactor0 = 0xD2511F53;
inline constexpr uint32_t kPhiloxFactor1 = 0xCD9E8D57;

// The key of the next round.
constexpr void NextPhiloxKey(std::array<uint32_t, 2>& key) {
  key[0] += 0x9E3779B9;
  key[1] += 0xBB67AE85;
}

// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11,
// section 3.4.
constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t a = uint64_t{kPhiloxFactor0} * counter[0];
    const uint64_t b = uint64_t{kPhiloxFactor1} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    NextPhiloxKey(key);
  }
  return counter;
}

}  // namespace pinfeed
