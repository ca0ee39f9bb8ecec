// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/fingerprint.h"

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

}  // namespace pinfeed
