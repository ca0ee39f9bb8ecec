// SPDX-License-Identifier: Apache-2.0
// A keyed permutation of 0..n-1: the order of one epoch.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace pinfeed {

// Purpose: a pseudo-random permutation of [0, n), a pure function of (n, seed, epoch). Statistical quality is
// required, secrecy is not.
// Up to kMaxListed elements, it is a list, shuffled by R. Durstenfeld's form of the Fisher-Yates shuffle
// (CACM 7(7), 1964, no. 235) with unbiased draws from Philox. Every order is equally likely.
// A larger permutation is computed one index at a time. It is a balanced Feistel network over the smallest
// even number of bits that holds n - 1, with cycle walking: it is applied again until the value is below n.
// See J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002. A Feistel network is a
// permutation for any round function (M. Luby and C. Rackoff, SIAM J. Comput. 17(2), 1988).
// Threads: any.
class Permutation {
 public:
  static constexpr uint64_t kMaxListed = uint64_t{1} << 16;

  // Precondition: n >= 1. Takes up to a millisecond and 128 KiB.
  Permutation(uint64_t n, uint64_t seed, uint64_t epoch);

  // Precondition: index < n. The expected number of applications of the network is below 4.
  uint64_t operator()(uint64_t index) const;
  // Of the indexes from `first` on, which is faster than one by one. Preconditions: first + values.size() <=
  // n; n - 1 fits 32 bits.
  void CopyTo(uint64_t first, std::span<uint32_t> values) const;
  // The index at which `value` stands; takes as long. The first call makes the inverse of the list, 128 KiB
  // more. Precondition: value < n.
  uint64_t PositionOf(uint64_t value) const;

 private:
  void MakeList(uint64_t seed, uint64_t epoch);
  void MakeKeys(uint64_t seed, uint64_t epoch);

  uint64_t n_;
  std::vector<uint16_t> list_;  // empty when n_ > kMaxListed; the rest is used then
  mutable std::once_flag inverted_;
  mutable std::vector<uint16_t> positions_;  // of the values of list_, since the first PositionOf
  int half_bits_ = 0;
  uint64_t half_mask_ = 0;
  uint64_t swap_ = 0;  // 1: the values 0 and 1 are exchanged
  std::array<uint64_t, 8> keys_{};
};

}  // namespace pinfeed
