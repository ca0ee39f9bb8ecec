// SPDX-License-Identifier: Apache-2.0
// How much memory something may take, as operators say it.
#pragma once

#include <cstdint>

namespace pinfeed {

// A number of bytes, or a share of a total.
struct MemorySize {
  uint64_t bytes = 0;  // 0: `share` applies
  double share = 0;

  bool IsSet() const { return bytes != 0 || share != 0; }

  uint64_t Of(uint64_t whole) const {
    return bytes != 0 ? bytes : static_cast<uint64_t>(static_cast<double>(whole) * share);
  }
};

}  // namespace pinfeed
