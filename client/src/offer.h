// SPDX-License-Identifier: Apache-2.0
// What the daemon offers when a feed is opened, free of the wire, and the checks that make it safe to use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/spec/feed_spec.h"
#include "common/spec/tensor_spec.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// The pointwise end of an image's way (pinfeed.v1.ImageTail).
struct OfferedImage {
  uint32_t height = 0;
  uint32_t width = 0;
  uint32_t channels = 0;
  ImageLayout source_layout = ImageLayout::kHwc;
  ImageLayout output_layout = ImageLayout::kChw;
  std::optional<uint32_t> mark;  // the tensor of marks
  std::vector<uint32_t> table;   // 256 * channels
};

// What is to be made of a slot's tensor. On the host there is one for each, without an image.
struct OfferedOutput {
  TensorSpec spec;
  uint32_t tensor = 0;  // of the layout
  std::optional<OfferedImage> image;
};

// One session as the daemon made it. A value. After CheckOffer: invariants 1. every sample of every tensor
// lies inside its slot, every slot (and the id behind the last) inside the arena; 2. 1 <= slot_count <=
// kMaxSlots; 3. tensor names are distinct and not empty; 4. each output fits the tensor it is made of.
struct FeedOffer {
  uint64_t session_id = 0;
  std::array<uint8_t, kTokenBytes> token{};
  std::string lifeline_path;
  bool replaceable = false;  // a group's: another one may be opened before this one ends, and this one be
                             // left: see Feed::Seek
  bool end_first = false;    // this is no session: the one to be replaced has to end. Nothing else is set

  BatchLayout layout;  // slot_bytes is the end of the last tensor
  uint32_t slot_count = 0;
  uint64_t arena_bytes = 0;
  Backend backend = Backend::kHost;
  bool read_only = false;
  bool host_will_do = false;               // the spec's backend is AUTO
  std::array<std::byte, 16> arena_id{};    // on a device it also follows the last slot
  std::array<std::byte, 64> ipc_handle{};  // of the arena, with cuda-ipc
  std::string fallback;                    // why the daemon offers no better backend, if that was asked for
  std::vector<OfferedOutput> outputs;      // on the host CheckOffer fills it in

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

}  // namespace pinfeed
