// SPDX-License-Identifier: Apache-2.0
// Identifies a dataset's samples and their order by 16 hexadecimal digits, which cursors carry.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/spec/tensor_spec.h"

namespace pinfeed {

// Purpose: hashes the facts that the sample order depends on. Detects mistakes, but not forgery.
// Algorithm: 64-bit FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/ (Fowler, Noll, Vo).
// Threads: a value; not for concurrent use.
// Invariant: the result depends on where one string ends and the next begins.
class Fingerprint {
 public:
  Fingerprint& Add(uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) Byte(static_cast<uint8_t>(number >> shift));
    return *this;
  }
  Fingerprint& Add(std::string_view text) {
    Add(uint64_t{text.size()});
    for (const char c : text) Byte(static_cast<uint8_t>(c));
    return *this;
  }
  Fingerprint& Add(const TensorSpec& spec);
  std::string Hex() const;

 private:
  void Byte(uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3; }
  uint64_t hash_ = 0xcbf29ce484222325;
};

// Hashes bytes eight at a time. `seed` is any number, such as the hash of what comes before. Any change of
// eight neighbouring bytes changes it. Detects damage, but not forgery.
uint64_t HashWords(uint64_t seed, std::string_view bytes);

}  // namespace pinfeed
