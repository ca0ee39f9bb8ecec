// SPDX-License-Identifier: Apache-2.0
// One client's part in a feed, and the reasons for which it ends.
#pragma once

#include <algorithm>
#include <array>
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

// Why a participant departs.
enum class DepartureReason : uint8_t {
  kBye,           // its client has unmapped the memory
  kLeft,          // its client wants no more batches and keeps those it has taken
  kEvicted,       // an operator ended its part; its client keeps the batches it has taken
  kHungUp,        // its lifeline is closed; its process lives and may still map the memory
  kProcessEnded,  // its process has ended
  kNeverCame,     // its client did not connect the lifeline in time
  kCancelled,     // its client cancelled the call that opened it
  kNotServed,     // its client came and could not be attached
  kDaemonStops,   // the daemon stops
};

struct Departure {
  DepartureReason reason = DepartureReason::kProcessEnded;
  // kEvicted, kLeft: what its client sees instead of a next batch. kNotServed: why not.
  Status error = OkStatus();
  // The batches that its client has taken stay lent until it releases them or departs again.
  bool keeps_taken = reason == DepartureReason::kLeft || reason == DepartureReason::kEvicted;
};

// Purpose: what a feed knows of one client. Owns: the control pages. Threads: `pages` and `start` are
// constant once attached; the feed's lock guards the rest. Invariant: it outlives its part in a feed.
struct Participant {
  enum class Role : uint8_t {
    kNone,
    kMember,  // gets batches
    kHolder,  // gets no more batches, and still holds some
  };
  // One slot's batch as this participant has it.
  struct Lease {
    uint64_t generation = 0;  // lent and not yet released; 0: none
    uint64_t sequence = 0;    // of the batch in its publish page
    uint64_t seen_word = 0;   // the release word when last read
  };

  Participant() = default;
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;
  ~Participant() { PF_CHECK(role == Role::kNone, "a participant departs before it is destroyed"); }

  // Batches lent and not released, as last read.
  int64_t Owes() const {
    return std::count_if(leases.begin(), leases.end(),
                         [](const Lease& lease) { return lease.generation != 0; });
  }
  // Those of them that the client reports as not taken. Untrusted: it may report any number.
  int64_t Untaken() const {
    const uint64_t taken = pages->Stats().taken;
    return std::count_if(leases.begin(), leases.end(), [taken](const Lease& lease) {
      return lease.generation != 0 && lease.sequence >= taken;
    });
  }
  // Whether the client has not released the slot, by its release word of this moment. The feed may not have
  // read that word yet.
  bool Holds(size_t slot) const {
    const uint64_t generation = leases[slot].generation;
    return generation != 0 && pages->Released(static_cast<uint32_t>(slot)) != generation;
  }
  // How many batches it holds, those it has not taken included.
  uint32_t CountHeld() const {
    uint32_t held = 0;
    for (size_t slot = 0; slot < leases.size(); ++slot) held += Holds(slot) ? 1 : 0;
    return held;
  }

  std::unique_ptr<ControlPages> pages;
  std::optional<Sampler::Start> start;  // its first batch; nothing: the feed's next one

  Role role = Role::kNone;
  std::array<Lease, kMaxSlots> leases = {};
  uint64_t waited_ns = 0;      // the trainer's waiting in all, as last read
  uint64_t waited_now_ns = 0;  // of waited_ns, the part since the reading before
  uint64_t ignored_releases = 0;
  StallSums stalls = {};
  RecentStalls recent = {};
  ClientTrace trace = {};
};

}  // namespace pinfeed
