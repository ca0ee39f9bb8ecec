// SPDX-License-Identifier: Apache-2.0
// The daemon's offer for a new session, without wire types, and the checks that make it safe to use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/spec/feed_spec.h"
#include "common/spec/sample_view.h"
#include "common/spec/tensor_spec.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// The image operations that the client applies (pinfeed.v1.DeferredPixelOps).
struct OfferedImage {
  uint32_t height = 0;
  uint32_t width = 0;
  uint32_t channels = 0;
  ImageLayout source_layout = ImageLayout::kHwc;
  ImageLayout output_layout = ImageLayout::kChw;
  std::optional<uint32_t> mark;  // index of the tensor of per-sample marks
  std::vector<uint32_t> table;   // 256 * channels entries
  // Index of the tensor of per-sample ImagePlans. Set: the slot has packed bytes, which are decoded.
  std::optional<uint32_t> plan;
  std::optional<SampleView> view;  // of a resident image

  // Of one sample.
  uint64_t PixelBytes() const { return uint64_t{height} * width * channels; }
  // A view is no part of it: it tells where pixels come from, and not how many there are.
  bool operator==(const OfferedImage& other) const;
};

// The samples of a feed in memory of the caller's GPU (pinfeed.v1.ResidentOffer).
struct OfferedResident {
  std::array<std::byte, 16> id{};  // at slot_stride in the arena
  uint64_t bytes = 0;              // of the arena
  BatchLayout layout;              // one slot with all samples as one batch
};

// An output, made of a slot's tensor. On the host, unless a GPU decodes, there is one per tensor, without
// `image`. The rows of a packed output lie in the order of the samples, without gaps.
struct OfferedOutput {
  TensorSpec spec;      // extents and lengths are indexes of outputs
  uint32_t tensor = 0;  // index into FeedOffer::source()
  std::optional<OfferedImage> image;
  bool is_extents = false;  // written together with the packed output that has these extents
  bool operator==(const OfferedOutput&) const = default;
};

// A feed whose batches processes of the user fill: what its spec says (dataset.produced).
struct OfferedProduction {
  uint32_t lanes = 0;
  std::vector<std::string> fields;  // names of the tensors that they fill
};

// One session as offered by the daemon. Copyable. Invariants after CheckOffer: 1. every sample of every
// tensor lies inside its slot; every slot, and the id after the last, inside the arena; 2. 1 <= slot_count <=
// kMaxSlots; 3. names of tensors and of outputs are distinct and not empty; 4. each output fits its tensor;
// 5. extents are the indexes of int64 tensors of shape [2], lengths of int64 scalars, and each belongs to one
// tensor; 6. at most one image is decoded, on the host only, each of its samples has at least the bytes of
// its pixels, and no other output is made of the encoded bytes, their extents or their plans; 7. with
// resident samples, the slots are on the host and have one tensor, of indexes; no tensor of the samples is
// packed, and an image of them has a usable view.
struct FeedOffer {
  uint64_t session_id = 0;
  std::array<uint8_t, kTokenBytes> token{};
  std::string lifeline_path;
  // Of a group: a second session may be opened before this one ends, and then take its place; see Feed::Seek.
  bool replaceable = false;
  // No session was made: the one to be replaced has to end first. No other field is set.
  bool end_first = false;

  BatchLayout layout;  // slot_bytes is the end of the last tensor
  uint32_t slot_count = 0;
  uint64_t arena_bytes = 0;
  Backend backend = Backend::kHost;
  bool read_only = false;
  bool host_acceptable = false;            // the spec's backend is AUTO
  std::array<std::byte, 16> arena_id{};    // on a device, also stored after the last slot
  std::array<std::byte, 64> ipc_handle{};  // of the arena, with cuda-ipc
  std::string fallback;                    // why the daemon offers no better backend, if one was asked for
  std::vector<OfferedOutput> outputs;      // on the host, unless a GPU decodes, filled in by CheckOffer

  Decode decode = Decode::kCpu;
  uint32_t gpu_share = 0;                    // of Decode::kAuto
  std::string decode_note;                   // why AUTO became CPU
  bool zero_bad_samples = false;             // what becomes of images that cannot be decoded
  std::optional<uint32_t> sample_id_tensor;  // which they keep

  std::optional<OfferedResident> resident;
  std::string resident_note;       // why AUTO became OFF
  bool resident_optional = false;  // the spec's resident is AUTO

  bool gathers_requests = false;  // the batches are a batcher's, and come when requests do
  std::optional<OfferedProduction> produced;

  std::string fingerprint;
  uint64_t dataset_samples = 0;
  uint64_t batches_per_epoch = 0;
  Cursor start;
  std::vector<std::string> classes;   // names of the labels 0, 1, ...
  std::vector<std::string> left_out;  // what the dataset holds and no field gives, and why

  // The output whose image this process decodes on its GPU; null: none.
  const OfferedOutput* Decoded() const;
  // Whether the batches come on the GPU.
  bool OnGpu() const { return backend != Backend::kHost || Decoded() != nullptr || resident; }
  // The tensors of which the outputs are made.
  const BatchLayout& source() const { return resident ? resident->layout : layout; }
};

// Fills in slot_bytes and checks the tensors: their names are distinct and not empty, and every sample lies
// inside its slot of slot_stride bytes. kInvalidArgument names the first fault.
Status CheckLayout(BatchLayout& layout);

// Fills in layout.slot_bytes and checks all other fields. Returns kInternal naming the first fault: the
// daemon is broken or of another version.
Status CheckOffer(FeedOffer& offer);

// Returns OK if a session opened later can continue a session with offer `before`: same dataset, same
// tensors. Otherwise kFailedPrecondition.
Status CheckSameFeed(const FeedOffer& before, const FeedOffer& now);

}  // namespace pinfeed
