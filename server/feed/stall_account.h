// SPDX-License-Identifier: Apache-2.0
// Attributes the time of a feed and of its members to causes. In: what the feed does, the members' own words
// on their waiting, the workers' times. Out: sums and recent shares by cause.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "server/feed/feed_snapshot.h"
#include "server/feed/membership.h"
#include "server/feed/recent_stalls.h"
#include "server/feed/stall.h"

namespace pinfeed {

// Purpose: keeps the sums of a feed, and those of each member in its Participant. Threads: one at a time; the
// feed's lock guards it. Errors: none. Invariants: 1. a member never waits longer than the time that passed,
// whatever its words say; 2. no sum ever falls.
class StallAccount {
 public:
  using Clock = std::chrono::steady_clock;

  // What a feed has been doing since the last Account.
  struct State {
    bool running = false;  // it publishes batches
    bool full = false;     // every slot is ready or lent
    // Why the next batch is not ready. Nothing: it is being loaded, and the workers' times decide.
    std::optional<StallCause> cause;
    // Totals since the feed began, but elapsed_ns.
    StallSums::Work work;
    bool working = false;  // some worker is loading a piece at this moment
  };

  explicit StallAccount(uint32_t slot_count) : slot_count_(slot_count) {}

  // Attributes the time since the last call.
  void Account(const Membership& membership, const State& state);
  // When Account was called last.
  Clock::time_point time() const { return time_; }
  void AddTo(FeedSnapshot& snapshot) const;

 private:
  // The time since the last call, and the mean waiting of the members in it.
  void AddStalls(const Membership& membership, const State& state, uint64_t elapsed, uint64_t waited);
  // Attributes deferred waiting as the workers' times say, once they say anything.
  void Settle(const Membership& membership, const State& state);

  const uint32_t slot_count_;
  Clock::time_point time_ = Clock::now();
  uint64_t running_ns_ = 0;
  uint64_t starved_ns_ = 0;
  uint64_t full_ns_ = 0;
  StallSums stalls_;
  RecentStalls recent_;           // as of the last settling
  uint64_t unsettled_ns_ = 0;     // since the last settling
  StallSums::Work settled_ = {};  // the workers' totals at the last settling
};

}  // namespace pinfeed
