// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/fingerprint.h"

#include <bit>
#include <cstring>

namespace pinfeed {

Fingerprint& Fingerprint::Add(const TensorSpec& spec) {
  Add(std::string_view(spec.name)).Add(static_cast<uint64_t>(spec.dtype)).Add(uint64_t{spec.shape.size()});
  for (const int64_t dimension : spec.shape) Add(static_cast<uint64_t>(dimension));
  return *this;
}

std::string Fingerprint::Hex() const {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(hash_ >> shift) & 0xF];
  return text;
}

uint64_t HashWords(uint64_t seed, std::string_view bytes) {
  uint64_t hash = seed ^ bytes.size() << 32;
  const auto mix = [&](uint64_t word) { hash = std::rotl(hash ^ word, 27) * 0x9E3779B97F4A7C15; };
  size_t offset = 0;
  for (; offset + sizeof(uint64_t) <= bytes.size(); offset += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + offset, sizeof word);
    mix(word);
  }
  uint64_t last = 0;
  std::memcpy(&last, bytes.data() + offset, bytes.size() - offset);
  mix(last);
  return hash;
}

}  // namespace pinfeed
