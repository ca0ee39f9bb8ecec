// SPDX-License-Identifier: Apache-2.0
//
// pinfeed's hand-over in its smallest form, for experiments: a daemon that fills slots by copies and
// announces what is complete; trainers that check every word on the GPU and release by a stream-ordered
// write. In: sizes. Out: counts in shared pages.
#pragma once

#include <atomic>
#include <vector>

#include "gpu.h"
#include "process.h"

namespace pinfeed {

constexpr std::uint64_t kSlots = 4;
constexpr std::uint64_t kSources = 7;  // prime to kSlots: a slot never gets the same bytes twice in a row

// One trainer's ring. The GPU writes `released`, so the words live in pages that the trainer registers.
struct Ring {
  alignas(64) std::atomic<std::uint64_t> published{0};
  alignas(64) std::atomic<std::uint64_t> wrong_words{~0ULL};
  struct alignas(64) Word {
    std::atomic<std::uint64_t> generation{0};
  } released[kSlots];
};

struct FeedPlan {
  Backend backend = Backend::kVmmFd;
  std::size_t batch_bytes = 0;
  std::uint64_t batches = 0;
  bool announce_early = false;  // the control: publishes before the copy is complete
};

// Exports one arena to all sockets, a ring each, and feeds until every batch of every ring is released.
void RunFeeder(const FeedPlan& plan, const std::vector<int>& sockets, const std::vector<Ring*>& rings);

// Trainer number `index` of the arena.
void RunTrainer(const FeedPlan& plan, int socket, std::size_t index, Ring* ring);

}  // namespace pinfeed
