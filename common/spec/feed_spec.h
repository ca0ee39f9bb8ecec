// SPDX-License-Identifier: Apache-2.0
// What a client asks of a feed, as the core sees it, free of the wire. proto/convert.h makes it from
// pinfeed.v1.FeedSpec; what its values may be is checked in common/spec/feed_spec_check.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/spec/parameters.h"
#include "common/spec/tensor_spec.h"
#include "common/spec/transform_spec.h"

namespace pinfeed {

inline constexpr uint32_t kMaxImageSide = 65500;  // in pixels: JPEG's own limit
// The largest image that is decoded or made, in pixels; a decoded one has sides of at most kMaxImageSide,
// too. What a hostile header can make the daemon allocate is bounded by the two: 3 bytes a pixel for each
// buffer, 8 for libjpeg's coefficients of a file of several scans, and what resizing takes (ResizeScratch).
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 28;

enum class Order { kSequential, kShuffle };
enum class ImageLayout { kChw, kHwc };
enum class OnBadSample { kFail, kSkip, kZero };
enum class Sharing { kExclusive, kBroadcast, kQueue };
enum class Backend { kAuto, kHost, kCudaIpc, kVmmFd };

struct DatasetSpec {
  std::string name;      // of a configured dataset, else empty
  std::string path;      // absolute, else empty
  std::string format;    // empty: found out
  ParameterMap options;  // of the format, those that were given (server/dataset/format.h)
  bool operator==(const DatasetSpec&) const = default;
};

// A field of rows that is given padded, not packed.
struct PaddedField {
  std::string field;
  uint32_t rows = 0;  // of every sample; one that has more is a bad sample
  bool operator==(const PaddedField&) const = default;
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
  std::vector<TransformSpec> transforms;
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
  bool sample_path = false;         // adds the dataset's field "sample_path"
  std::vector<PaddedField> pad;
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
