// SPDX-License-Identifier: Apache-2.0
// What a feed knows of one of its sessions.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "server/feed/recent_stalls.h"
#include "server/feed/stall.h"
#include "server/memory/control_pages.h"
#include "server/order/sampler.h"
#include "server/trace/feed_trace.h"

namespace pinfeed {

// Purpose: the batches that a session was lent, and its waiting. Borrows: the session's pages. Threads: not
// for concurrent use (the feed's mutex guards it).
struct FeedConsumer {
  ControlPages* pages = nullptr;
  std::optional<Sampler::Start> start;
  std::array<uint64_t, kMaxSlots> owed = {};      // generation lent and not yet released; 0: none
  std::array<uint64_t, kMaxSlots> sequence = {};  // of the batch lent, where something is owed
  std::array<uint64_t, kMaxSlots> seen = {};      // release word as last looked at
  uint64_t waited_ns = 0;                         // the trainer's waiting in all, as last looked at
  uint64_t ignored_releases = 0;
  uint64_t waited_now_ns = 0;  // of waited_ns, since the look before
  StallSums stalls = {};
  RecentStalls recent = {};
  ClientTrace trace = {};

  // Batches that it was lent and has not released, as last looked at.
  int64_t Owes() const {
    return std::count_if(owed.begin(), owed.end(), [](uint64_t generation) { return generation != 0; });
  }
  // Those of them that the client reports as not taken. Untrusted: it may report any number.
  int64_t Untaken() const {
    const uint64_t taken = pages->Stats().taken;
    int64_t untaken = 0;
    for (size_t slot = 0; slot < owed.size(); ++slot)
      if (owed[slot] != 0 && sequence[slot] >= taken) ++untaken;
    return untaken;
  }
};

}  // namespace pinfeed
