// SPDX-License-Identifier: Apache-2.0
// Attributes the time of a feed and of its members to causes. In: the feed's state, the waiting that members
// report, the workers' times. Out: sums and recent shares by cause.
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
// feed's lock guards it. Errors: none. Invariants: 1. a member's waiting never exceeds the elapsed time,
// whatever it reports; 2. no sum decreases.
class StallAccount {
 public:
  using Clock = std::chrono::steady_clock;

  // What the feed has been doing since the last Account.
  struct State {
    bool running = false;  // it publishes batches
    bool full = false;     // every slot is ready or lent
    // Why the next batch is not ready. Nothing if it is being loaded: then the workers' times decide.
    std::optional<StallCause> cause;
    // Totals since the feed began; elapsed_ns is unused.
    StallSums::Work work;
    std::optional<uint64_t> loading_ns;  // ProducerTimes: only then can trainers wait for it
    bool working = false;                // a worker is loading a piece now
  };

  explicit StallAccount(uint32_t slot_count) : slot_count_(slot_count) {}

  // Attributes the time since the last call.
  void Account(const Membership& membership, const State& state);
  // The time of the last call of Account.
  Clock::time_point time() const { return time_; }
  void AddTo(FeedSnapshot& snapshot) const;

 private:
  // `elapsed` is the time since the last call, `waited` the mean waiting of the members in it.
  void AddStalls(const Membership& membership, const State& state, uint64_t elapsed, uint64_t waited);
  // Attributes deferred waiting by the workers' times, once there are any.
  void Settle(const Membership& membership, const State& state);

  const uint32_t slot_count_;
  Clock::time_point time_ = Clock::now();
  uint64_t running_ns_ = 0;
  uint64_t starved_ns_ = 0;
  uint64_t full_ns_ = 0;
  uint64_t idle_ns_ = 0;  // part of starved_ns_ in which nothing was there to be loaded
  StallSums stalls_;
  RecentStalls recent_;
  uint64_t recent_ns_ = 0;        // settled, and not in recent_ yet
  uint64_t unsettled_ns_ = 0;     // since the last Settle
  StallSums::Work settled_ = {};  // the workers' totals at the last Settle
  uint64_t settled_loading_ns_ = 0;
};

}  // namespace pinfeed
