// SPDX-License-Identifier: Apache-2.0
// The credit that one connection was granted. In: grants and costs. Out: whether to go on now.
#pragma once

#include <cstdint>

#include "server/net/connection_owner.h"

namespace pinfeed {

// Purpose: pays for a connection and its frames, from the last grant or from the user's credit. Borrows: the
// owner. Threads: one at a time. Errors: none. Invariant: while a grant is awaited, nothing is paid.
class ConnectionCredit {
 public:
  ConnectionCredit(ConnectionOwner& owner, uint32_t opening_cost)
      : owner_(owner), opening_cost_(opening_cost) {}

  // Pays for opening the connection, once. Returns false while that waits for credit.
  bool PayOpening() {
    if (opened_) return true;
    if (!Pay(opening_cost_)) return false;
    opened_ = true;
    return true;
  }
  // Returns false if credit must be awaited: call again after Grant.
  bool Pay(uint32_t cost) {
    if (waiting_) return false;
    if (left_ >= cost) {
      left_ -= cost;
      return true;
    }
    waiting_ = !owner_.RequestCredit(cost);
    return !waiting_;
  }
  void Grant(uint32_t credit) {
    waiting_ = false;
    left_ += credit;
  }
  // Whether the connection is paid and waits for no grant.
  bool flows() const { return opened_ && !waiting_; }

 private:
  ConnectionOwner& owner_;
  const uint32_t opening_cost_;
  bool opened_ = false;
  bool waiting_ = false;  // queued in UserCredit
  uint32_t left_ = 0;     // of the last grant
};

}  // namespace pinfeed
