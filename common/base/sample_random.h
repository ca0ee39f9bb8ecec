// SPDX-License-Identifier: Apache-2.0
// Randomness that is a pure function of (seed, epoch, sample, transform): the same on any thread, in any
// order, after any restart.
#pragma once

#include <array>
#include <cstdint>

#include "common/base/philox.h"

namespace pinfeed {

// Purpose: the random numbers of one transform of one sample. A value. No two of them share a stream.
class SampleRandom {
 public:
  // Seed, epoch, sample and transform do not fit into one key and counter. A first application therefore
  // derives the key of the second.
  constexpr SampleRandom(uint64_t seed, uint64_t epoch, uint64_t sample, uint32_t transform) {
    const std::array<uint32_t, 4> derived =
        Philox4x32({Low(epoch), High(epoch), transform, kDomain}, {Low(seed), High(seed)});
    key_ = {derived[0], derived[1]};
    counter_ = {0, derived[2], Low(sample), High(sample)};
  }

  constexpr uint64_t Next() {
    if (used_ == 4) {
      block_ = Philox4x32(counter_, key_);
      ++counter_[0];
      used_ = 0;
    }
    used_ += 2;
    return uint64_t{block_[used_ - 1]} << 32 | block_[used_ - 2];
  }
  // Uniform in [0, 1), a multiple of 2^-53.
  constexpr double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // Uniform between `low` and `high`.
  constexpr double Between(double low, double high) { return low + (high - low) * Unit(); }
  // Uniform in [0, count). Precondition: count > 0. Takes the high half of a 96-bit product; the bias is
  // below count / 2^64.
  constexpr uint32_t Below(uint32_t count) {
    const uint64_t random = Next();
    const uint64_t carry = ((random & 0xFFFFFFFF) * count) >> 32;
    return static_cast<uint32_t>(((random >> 32) * count + carry) >> 32);
  }

 private:
  // Keeps these streams apart from other uses of the same seed.
  static constexpr uint32_t kDomain = 0x736D706C;
  static constexpr uint32_t Low(uint64_t value) { return static_cast<uint32_t>(value); }
  static constexpr uint32_t High(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

  std::array<uint32_t, 2> key_{};
  std::array<uint32_t, 4> counter_{};
  std::array<uint32_t, 4> block_{};
  uint32_t used_ = 4;
};

}  // namespace pinfeed
