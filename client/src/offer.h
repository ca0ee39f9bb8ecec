// SPDX-License-Identifier: Apache-2.0
// What the daemon offers when a feed is opened, free of the wire, and the checks that make it safe to use.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/feed_spec.h"
#include "common/result.h"
#include "common/shared_page.h"
#include "common/tensor_spec.h"

namespace pinfeed {

// One session as the daemon made it. A value. After CheckOffer: invariants 1. every sample of every tensor
// lies inside its slot, every slot inside the arena; 2. 1 <= slot_count <= kMaxSlots; 3. tensor names are
// distinct and not empty.
struct FeedOffer {
  uint64_t session_id = 0;
  std::array<uint8_t, kTokenBytes> token{};
  std::string lifeline_path;

  BatchLayout layout;  // slot_bytes is the end of the last tensor
  uint32_t slot_count = 0;
  uint64_t arena_bytes = 0;
  Backend backend = Backend::kHost;
  bool read_only = false;

  std::string fingerprint;
  uint64_t dataset_samples = 0;
  uint64_t batches_per_epoch = 0;
  Cursor start;
  std::vector<std::string> classes;  // names of the labels 0, 1, ...
};

// Fills in layout.slot_bytes and verifies the rest. kInternal naming the first thing that is wrong: the
// daemon is another version or broken.
Status CheckOffer(FeedOffer& offer);

// OK when a session opened later can go on where one with `before` stopped: same dataset, same tensors.
// kFailedPrecondition otherwise.
Status CheckSameFeed(const FeedOffer& before, const FeedOffer& now);

// "host", "cuda-ipc", "vmm-fd". Static lifetime.
const char* BackendName(Backend backend);

}  // namespace pinfeed
