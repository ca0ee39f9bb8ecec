// SPDX-License-Identifier: Apache-2.0
// What a client requests of a feed, independent of the wire format. proto/convert.h creates it from
// pinfeed.v1.FeedSpec, and common/spec/feed_spec_check.h checks its values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/parameter_map.h"
#include "common/spec/tensor_spec.h"
#include "common/spec/transform_spec.h"

namespace pinfeed {

inline constexpr uint32_t kMaxImageSide = 65500;  // in pixels: the limit of JPEG
// The maximum number of pixels of an image, decoded or computed. The sides of a decoded image are also
// limited to kMaxImageSide. Together they bound what a hostile header can make the daemon allocate: 3 bytes
// per pixel for each buffer, 8 for libjpeg's coefficients of a file with several scans, and the resize
// (ResizeScratch).
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 28;

enum class Order { kSequential, kShuffle };
enum class ImageLayout { kChw, kHwc };
enum class OnBadSample { kFail, kSkip, kZero };
enum class Sharing { kExclusive, kBroadcast, kQueue };
enum class Backend { kAuto, kHost, kCudaIpc, kVmmFd };
// Where the feed's JPEG images are decoded: by the workers, by the trainer's GPU, or some by each.
enum class Decode { kCpu, kGpu, kAuto };
// Whether the samples are kept in the memory of the trainer's GPU: no, only so, or if that is possible.
enum class Resident { kOff, kOn, kAuto };
inline constexpr uint32_t kWholeShare = 1000;  // a share of all samples, which is counted per mille

// The tensor (int64, []) of the samples' indexes in the dataset.
inline constexpr std::string_view kSampleIdTensor = "sample_id";

// A dataset whose samples only processes of the feed's user can read, which fill the batches.
struct ProducedDataset {
  std::string name;      // for people
  uint64_t samples = 0;  // per epoch
  std::vector<TensorSpec> fields;
  std::string fingerprint;  // of the samples and their order, as the user tells; or empty
  uint32_t lanes = 0;       // batch i is filled by a producer of lane i mod `lanes`; 0: by any
  // A batch that takes a producer longer goes to another one as well, in another slot; 0: never.
  uint32_t task_timeout_ms = 0;
  bool operator==(const ProducedDataset&) const = default;
};

struct DatasetSpec {
  std::string name = {};                         // the name of a configured dataset, or empty
  std::string path = {};                         // absolute, or empty
  std::string format = {};                       // empty: to be detected
  ParameterMap options = {};                     // the given options of the format (server/dataset/format.h)
  std::optional<ProducedDataset> produced = {};  // then the rest is empty
  bool operator==(const DatasetSpec&) const = default;
};

// A field of rows that is given padded, not packed.
struct PaddedField {
  std::string field;
  uint32_t rows = 0;  // of every sample; one that has more is a bad sample
  bool operator==(const PaddedField&) const = default;
};

// Batches are made of what client processes submit, instead of a dataset's samples.
struct BatcherSpec {
  uint32_t max_delay_us = 0;       // how long the first request of a batch waits for others
  uint32_t queue_limit = 0;        // requests that wait for a batch
  uint32_t max_request_bytes = 0;  // of an encoded image; 0 for arrays
  uint32_t max_answer_bytes = 0;
  std::optional<TensorSpec> array;  // what a request is, whose name does not count; nothing: an encoded image
  bool redeal = false;              // requests whose consumer ended go to another one; otherwise they fail
  bool operator==(const BatcherSpec&) const = default;
};

struct FeedSpec {
  DatasetSpec dataset = {};
  uint32_t batch_size = 0;
  Order order = Order::kSequential;
  uint64_t seed = 0;
  uint64_t epochs = 0;  // 0: endless
  bool drop_last = false;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::vector<TransformSpec> transforms = {};
  ImageLayout image_layout = ImageLayout::kChw;
  OnBadSample on_bad_sample = OnBadSample::kFail;
  uint32_t slots = 0;  // 0: the daemon's default
  bool sample_ids = false;
  bool valid = false;                   // adds the tensor "valid": whether each sample could be read
  std::vector<std::string> masks = {};  // fields that follow the image's geometry
  std::vector<std::string> fields_unchanged = {};  // fields of the image's size that do not
  Sharing sharing = Sharing::kExclusive;
  std::string group = {};
  uint32_t group_size = 1;
  Backend backend = Backend::kAuto;
  bool ignore_exif_orientation = false;
  std::vector<std::string> fields = {};  // the dataset's fields to read, in this order; empty: all
  bool sample_path = false;              // adds the dataset's field "sample_path"
  std::vector<PaddedField> pad = {};
  Decode decode = Decode::kCpu;
  uint32_t gpu_share = 0;  // of kAuto: what the GPU decodes, per mille of the samples; 0: not decided yet
  // Of a produced dataset: the most images of a batch that its producers hand over as files; 0: none.
  uint32_t encoded_images = 0;
  std::optional<BatcherSpec> batcher = {};  // then the dataset is empty, and the group is the batcher's name
  Resident resident = Resident::kOff;
  bool operator==(const FeedSpec&) const = default;
};

// What the GPU decodes, per mille of the samples. Precondition: it is decided.
inline uint32_t GpuShare(const FeedSpec& spec) {
  return spec.decode == Decode::kGpu ? kWholeShare : spec.gpu_share;
}
// Whether the client makes images on its GPU, of files in host memory. Same precondition.
inline bool DecodesOnGpu(const FeedSpec& spec) {
  return GpuShare(spec) != 0;
}
// Whether that is still to be decided.
inline bool LeavesDecodeOpen(const FeedSpec& spec) {
  return spec.decode == Decode::kAuto && spec.gpu_share == 0;
}
// Whether one feed can serve both specs: they are equal, apart from a decision that one of them leaves open.
bool MayShareFeed(const FeedSpec& a, const FeedSpec& b);

// The version of new cursors. In version 1, SHUFFLE had another order.
inline constexpr uint32_t kCursorVersion = 2;
// The last possible epoch. Feeds end after it, so that a trainer's epoch counter does not overflow.
inline constexpr uint64_t kMaxEpoch = INT64_MAX;

// Where a feed starts or resumes.
struct Cursor {
  std::string fingerprint = {};  // empty: not checked
  uint64_t seed = 0;
  uint64_t epoch = 0;
  uint64_t position = 0;                      // samples of the epoch consumed by all ranks together
  std::optional<Order> order = std::nullopt;  // the order to which position refers; unset: not checked
  uint32_t version = kCursorVersion;          // 1 to kCursorVersion
  bool operator==(const Cursor&) const = default;
};

}  // namespace pinfeed
