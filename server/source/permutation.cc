// SPDX-License-Identifier: Apache-2.0
#include "server/source/permutation.h"

#include <bit>

#include "common/status.h"

namespace pinfeed {
namespace {

// The finaliser of SplitMix64 (constants of D. Stafford's variant 13).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15;

}  // namespace

Permutation::Permutation(uint64_t n, uint64_t seed, uint64_t epoch) : n_(n) {
  PF_CHECK(n >= 1, "a permutation needs at least one element");
  const int bits = n <= 2 ? 1 : std::bit_width(n - 1);
  half_bits_ = (bits + 1) / 2;
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  // Two rounds of mixing, so that (seed, epoch) and (seed', epoch') with equal sums get unrelated keys.
  uint64_t state = Mix(Mix(seed + kGoldenGamma) ^ (epoch + kGoldenGamma));
  for (uint64_t& key : keys_) key = Mix(state += kGoldenGamma);
}

uint64_t Permutation::operator()(uint64_t index) const {
  PF_CHECK(index < n_, "index outside the permutation");
  do {
    uint64_t left = index >> half_bits_;
    uint64_t right = index & half_mask_;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (Mix(right + key) & half_mask_);
      left = right;
      right = next;
    }
    index = (left << half_bits_) | right;
  } while (index >= n_);
  return index;
}

}  // namespace pinfeed
