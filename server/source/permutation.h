// SPDX-License-Identifier: Apache-2.0
// A keyed permutation of 0..n-1, evaluated one index at a time: shuffling without a list.
#pragma once

#include <cstdint>

namespace pinfeed {

// Purpose: a pseudo-random permutation of [0, n): a balanced Feistel network over the smallest even number of
// bits that holds n - 1, with "cycle walking" (apply again until the value is below n), after J. Black and P.
// Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002; a Feistel network is a permutation whatever
// its round function (M. Luby and C. Rackoff, SIAM J. Comput. 17(2), 1988). The round function is the
// finaliser of SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014); statistical quality is wanted, secrecy
// is not. Threads: immutable.
class Permutation {
 public:
  // Precondition: n >= 1.
  Permutation(uint64_t n, uint64_t seed, uint64_t epoch);

  // Precondition: index < n. Expected rounds of walking: below 4.
  uint64_t operator()(uint64_t index) const;

 private:
  static constexpr int kRounds = 6;
  uint64_t n_;
  int half_bits_;
  uint64_t half_mask_;
  uint64_t keys_[kRounds];
};

}  // namespace pinfeed
