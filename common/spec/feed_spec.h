// SPDX-License-Identifier: Apache-2.0
// What a client asks of a feed, as the core sees it, free of the wire. proto/convert.h makes it from
// pinfeed.v1.FeedSpec; what its values may be is checked in common/spec/feed_spec_check.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/spec/tensor_spec.h"

namespace pinfeed {

// torchvision's transforms by its names. Sizes are pixels, > 0 and <= kMaxImageSide.
inline constexpr uint32_t kMaxImageSide = 65500;  // JPEG's own limit
// The largest image that is decoded or made, in pixels; a decoded one has sides of at most kMaxImageSide,
// too. What a hostile header can make the daemon allocate is bounded by the two: 3 bytes a pixel for each
// buffer, 8 for libjpeg's coefficients of a file of several scans, and what resizing takes (ResizeScratch).
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 28;

struct Resize {
  uint32_t height = 0;  // 0: `width` is the length of the shorter side and the aspect ratio is kept
  uint32_t width = 0;
  // With height 0: the most the longer side may have, 0 for any; with width 0 as well: what it has.
  uint32_t max_size = 0;
  bool operator==(const Resize&) const = default;
};
struct CenterCrop {
  uint32_t height = 0;
  uint32_t width = 0;
  bool operator==(const CenterCrop&) const = default;
};
struct RandomResizedCrop {
  uint32_t height = 0;
  uint32_t width = 0;
  double scale_min = 0.08;  // share of the source's area
  double scale_max = 1.0;
  double ratio_min = 3.0 / 4.0;  // width / height
  double ratio_max = 4.0 / 3.0;
  bool operator==(const RandomResizedCrop&) const = default;
};
struct RandomHorizontalFlip {
  double p = 0.5;
  bool operator==(const RandomHorizontalFlip&) const = default;
};
// (x - mean) / std in float32. On uint8 pixels x is the pixel divided by 255, so that Normalize may stand
// alone or before a ToDtype (which then only casts); behind ToDtype(floating, scale = false) x is the pixel
// itself. Pointwise transforms come behind all geometry.
struct Normalize {
  std::vector<double> mean;  // one value, or one a channel
  std::vector<double> std;   // likewise; all above 0
  bool operator==(const Normalize&) const = default;
};
struct ToDtype {
  DType dtype = DType::kUint8;  // kUint8, kFloat32, kFloat16 or kBfloat16
  bool scale = false;           // uint8 -> floating point: divide by 255
  bool operator==(const ToDtype&) const = default;
};
using Transform =
    std::variant<Resize, CenterCrop, RandomResizedCrop, RandomHorizontalFlip, Normalize, ToDtype>;

enum class Order { kSequential, kShuffle };
enum class ImageLayout { kChw, kHwc };
enum class OnBadSample { kFail, kSkip, kZero };
enum class Sharing { kExclusive, kBroadcast, kQueue };
enum class Backend { kAuto, kHost, kCudaIpc, kVmmFd };

inline constexpr std::array<std::string_view, 3> kDatasetFormats = {"image_folder", "npy", "tokens"};

struct DatasetSpec {
  std::string name;  // of a configured dataset, else empty
  std::string path;  // absolute, else empty
  std::string format;
  uint32_t sequence_length = 0;
  uint32_t stride = 0;
  std::optional<DType> token_dtype = std::nullopt;  // of a file without header; unset: kUint16
  bool operator==(const DatasetSpec&) const = default;
};

struct FeedSpec {
  DatasetSpec dataset;
  uint32_t batch_size = 0;
  Order order = Order::kSequential;
  uint64_t seed = 0;
  uint64_t epochs = 0;  // 0: endless
  bool drop_last = false;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::vector<Transform> transforms;
  ImageLayout image_layout = ImageLayout::kChw;
  OnBadSample on_bad_sample = OnBadSample::kFail;
  uint32_t slots = 0;  // 0: the daemon's default
  bool sample_ids = false;
  bool valid = false;                         // adds the tensor "valid": whether each sample could be read
  std::vector<std::string> masks;             // fields that follow the image's geometry
  std::vector<std::string> fields_unchanged;  // fields of the image's size that do not
  Sharing sharing = Sharing::kExclusive;
  std::string group;
  uint32_t group_size = 1;
  Backend backend = Backend::kAuto;
  bool ignore_exif_orientation = false;
  std::vector<std::string> fields;  // only these of the dataset's, in this order; empty: all
  bool operator==(const FeedSpec&) const = default;
};

// Of the cursors written now. With 1, SHUFFLE had another order.
inline constexpr uint32_t kCursorVersion = 2;
// The last epoch that there can be: behind it a feed ends, and a trainer that counts on stays within 64 bits.
inline constexpr uint64_t kMaxEpoch = INT64_MAX;

// Where a feed starts or resumes.
struct Cursor {
  std::string fingerprint;  // empty: not checked
  uint64_t seed = 0;
  uint64_t epoch = 0;
  uint64_t position = 0;                      // samples of the epoch consumed by all ranks together
  std::optional<Order> order = std::nullopt;  // that the position counts in; unset: not checked
  uint32_t version = kCursorVersion;          // 1 to kCursorVersion
  bool operator==(const Cursor&) const = default;
};

}  // namespace pinfeed
