// SPDX-License-Identifier: Apache-2.0
// The order in which the pieces of a batch are delivered. In: pieces in the order in which they were filled.
// Out: the same pieces in the batch's order.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace pinfeed {

// Purpose: lets one thread at a time deliver pieces, in order and without gaps. Threads: not for concurrent
// use; a batch's lock guards it. Errors: none.
class DeliveryOrder {
 public:
  explicit DeliveryOrder(size_t pieces) : filled_(pieces) {}

  // Returns whether the caller has to deliver what Next returns; else another thread already does.
  bool AddFilled(size_t piece) {
    filled_[piece] = true;
    return !std::exchange(delivering_, true);
  }
  // Returns the next piece to deliver. Empty if it is not filled or there is none; the caller is then done.
  std::optional<size_t> Next() {
    delivering_ = next_ < filled_.size() && filled_[next_];
    return delivering_ ? std::optional(next_++) : std::nullopt;
  }

 private:
  std::vector<bool> filled_;
  size_t next_ = 0;
  bool delivering_ = false;
};

}  // namespace pinfeed
