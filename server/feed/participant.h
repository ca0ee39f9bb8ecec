// SPDX-License-Identifier: Apache-2.0
// One client's participation in a feed, and the reasons why it ends.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "server/feed/recent_stalls.h"
#include "server/feed/stall.h"
#include "server/memory/control_pages.h"
#include "server/order/sampler.h"
#include "server/trace/feed_trace.h"

namespace pinfeed {

// Why a participant departs from its feed.
enum class DepartureReason : uint8_t {
  kBye,           // its client has unmapped the memory
  kLeft,          // its client wants no more batches, and keeps those that it has taken
  kEvicted,       // an operator evicted it; its client keeps the batches that it has taken
  kHungUp,        // its lifeline is closed; its process lives and may still map the memory
  kProcessEnded,  // its process has ended
  kNeverCame,     // its client did not connect the lifeline in time
  kCancelled,     // its client cancelled the call that opened it
  kNotServed,     // its client connected and could not be attached
  kDaemonStops,   // the daemon stops
};

struct Departure {
  DepartureReason reason = DepartureReason::kProcessEnded;
  // kEvicted, kLeft, kHungUp: the error that its client gets in place of the next batch. kNotServed: why not.
  Status error = OkStatus();
  // The batches that its client has taken stay lent until it releases them or departs again.
  bool keeps_taken = reason == DepartureReason::kLeft || reason == DepartureReason::kEvicted;
};

// Purpose: a feed's record of one client. Owns: the control pages. Threads: `pages`, `start` and `first` are
// constant once attached; the feed's lock guards the rest. Invariant: it outlives its participation.
struct Participant {
  enum class Role : uint8_t {
    kNone,
    kMember,  // gets batches
    kHolder,  // gets no more batches, but still holds some
  };
  // This participant's lease of one slot.
  struct Lease {
    uint64_t generation = 0;                              // lent and not yet released; 0: none
    uint64_t sequence = 0;                                // the batch's sequence number in its publish page
    uint64_t seen_word = 0;                               // the release word when last read
    std::chrono::steady_clock::time_point taken_at = {};  // when its client was first seen to have taken it
  };

  Participant() = default;
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;
  ~Participant() { PF_CHECK(role == Role::kNone, "a participant departs before it is destroyed"); }

  // The number of batches that were lent and not released when last read.
  int64_t Owes() const {
    return std::ranges::count_if(leases, [](const Lease& lease) { return lease.generation != 0; });
  }
  // The number of these that the client reports as not taken. Untrusted: it may report any number.
  int64_t Untaken() const {
    const uint64_t taken = pages->Stats().taken;
    return std::ranges::count_if(
        leases, [taken](const Lease& lease) { return lease.generation != 0 && lease.sequence >= taken; });
  }
  // The CLOCK_MONOTONIC time since when the client reports that it waits for a batch; 0: it does not.
  // Untrusted, as above.
  int64_t WaitsSince() const { return static_cast<int64_t>(pages->Stats().waiting_since_ns); }
  // Its client reports that it has taken so many batches.
  void SeeTaken(uint64_t batches, std::chrono::steady_clock::time_point now) {
    if (std::exchange(seen_taken, batches) == batches) return;
    seen_taken_at = now;
    for (Lease& lease : leases)
      if (lease.sequence < batches && lease.taken_at == std::chrono::steady_clock::time_point())
        lease.taken_at = now;
  }
  // Whether the client has not released the slot yet, by the current release word, which the feed may not
  // have read.
  bool Holds(size_t slot) const {
    const uint64_t generation = leases[slot].generation;
    return generation != 0 && pages->Released(static_cast<uint32_t>(slot)) != generation;
  }
  // The number of batches that it holds, including those it has not taken.
  uint32_t CountHeld() const {
    uint32_t held = 0;
    for (size_t slot = 0; slot < leases.size(); ++slot) held += Holds(slot) ? 1 : 0;
    return held;
  }

  std::shared_ptr<ControlPages> pages;
  std::optional<Sampler::Start> start;  // its first batch; empty: the feed's next one
  Sampler::Start first = {};  // set by Attach: no earlier batch is published to it, unless it is in a queue

  Role role = Role::kNone;
  std::array<Lease, kMaxSlots> leases = {};
  uint64_t seen_taken = 0;  // batches that its client had taken when last read
  std::chrono::steady_clock::time_point seen_taken_at = {};  // when that was last seen to change
  uint64_t waited_ns = 0;                                    // the trainer's total waiting when last read
  uint64_t waited_now_ns = 0;                                // the part of waited_ns since the previous read
  uint64_t ignored_releases = 0;
  StallSums stalls = {};
  RecentStalls recent = {};
  ClientTrace trace = {};
};

}  // namespace pinfeed
