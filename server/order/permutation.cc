// SPDX-License-Identifier: Apache-2.0
#include "server/order/permutation.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "common/base/status.h"
#include "server/order/philox_blocks.h"

namespace pinfeed {
namespace {

// The finaliser of SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014; constants of D. Stafford's variant
// 13).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The random numbers for one epoch's order, from 64 * `block` on. Different (seed, epoch) never share
// numbers.
PhiloxNumbers EpochNumbers(uint64_t seed, uint64_t epoch, uint32_t block) {
  constexpr uint32_t kDomain = 0x6F726472;  // separates this use of a seed from others
  return Philox4x32Blocks(
      {kPhiloxBlocks * block, kDomain, static_cast<uint32_t>(epoch), static_cast<uint32_t>(epoch >> 32)},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

}  // namespace

Permutation::Permutation(uint64_t n, uint64_t seed, uint64_t epoch) : n_(n) {
  PF_CHECK(n >= 1, "a permutation needs at least one element");
  if (n <= kMaxListed)
    MakeList(seed, epoch);
  else
    MakeKeys(seed, epoch);
}

// Draws without bias: D. Lemire, "Fast Random Integer Generation in an Interval", ACM TOMACS 29(1), 2019.
void Permutation::MakeList(uint64_t seed, uint64_t epoch) {
  list_.resize(n_);
  std::iota(list_.begin(), list_.end(), uint16_t{0});
  auto left = static_cast<uint32_t>(n_);
  for (uint32_t block = 0; left > 1; ++block) {
    for (const uint32_t number : EpochNumbers(seed, epoch, block)) {
      const uint64_t product = uint64_t{number} * left;
      const auto low = static_cast<uint32_t>(product);
      if (low < left && low < (0 - left) % left) continue;  // 2^32 modulo left: the next number, then
      --left;
      std::swap(list_[left], list_[product >> 32]);
      if (left <= 1) break;
    }
  }
}

void Permutation::MakeKeys(uint64_t seed, uint64_t epoch) {
  half_bits_ = (std::bit_width(n_ - 1) + 1) / 2;
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  const PhiloxNumbers numbers = EpochNumbers(seed, epoch, 0);
  const auto* number = numbers.data();
  for (uint64_t& key : keys_) {
    key = uint64_t{*number++} << 32;
    key |= *number++;
  }
  // Every round is an even permutation. Without this swap, every order of 2^(2k) elements would be even as
  // well.
  swap_ = *number & 1;
}

uint64_t Permutation::operator()(uint64_t index) const {
  PF_CHECK(index < n_, "index outside the permutation");
  if (!list_.empty()) return list_[index];
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
  return index < 2 ? index ^ swap_ : index;
}

void Permutation::CopyTo(uint64_t first, std::span<uint32_t> values) const {
  PF_CHECK(first <= n_ && values.size() <= n_ - first, "indexes outside the permutation");
  if (!list_.empty()) {
    std::ranges::copy(std::span(list_).subspan(first, values.size()), values.begin());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint32_t>((*this)(first + i));
}

// The rounds of operator() backwards, until the value is an index again.
uint64_t Permutation::PositionOf(uint64_t value) const {
  PF_CHECK(value < n_, "value outside the permutation");
  if (!list_.empty()) {
    std::call_once(inverted_, [this] {
      positions_.resize(n_);
      for (size_t i = 0; i < list_.size(); ++i) positions_[list_[i]] = static_cast<uint16_t>(i);
    });
    return positions_[value];
  }
  if (value < 2) value ^= swap_;
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & half_mask_;
    for (auto key = keys_.rbegin(); key != keys_.rend(); ++key) {
      const uint64_t before = right ^ (Mix(left + *key) & half_mask_);
      right = left;
      left = before;
    }
    value = (left << half_bits_) | right;
  } while (value >= n_);
  return value;
}

}  // namespace pinfeed
