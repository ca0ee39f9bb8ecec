// SPDX-License-Identifier: Apache-2.0
// Between the wire (pinfeed.v1) and the core's types. In: messages from another process, of which nothing is
// believed. Out: checked values, or one error that lists every fault, one a line, each led by its field.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/faults.h"
#include "common/base/result.h"
#include "common/spec/feed_spec.h"
#include "common/spec/tensor_spec.h"
#include "pinfeed/v1/feeder.pb.h"

namespace pinfeed {

inline constexpr size_t kMaxClientNameBytes = 128;
inline constexpr size_t kMaxReasonBytes = 512;
inline constexpr int kMaxTransforms = 64;
// In the trailing metadata of an OpenFeed that is refused with UNAVAILABLE: the daemon stops, the next one
// may take it. A connection that just ends is no such word.
inline constexpr char kStoppingKey[] = "pinfeed-stopping";

// A backend that the client was offered and could not use.
struct FailedBackend {
  Backend backend = Backend::kVmmFd;
  std::string reason;  // printable
};

// An OpenFeedRequest without what the daemon compares with itself (protocol version and boot id).
struct OpenFeedArguments {
  FeedSpec spec;
  std::optional<Cursor> cursor;
  std::string gpu_uuid;
  std::string client_name;  // printable
  std::vector<FailedBackend> failed_backends;
  uint64_t replaces_session = 0;  // believed in nothing: see FeedOpener
  bool decodes_on_gpu = false;
  std::string no_gpu_decoder = {};  // printable
  bool shares_decoded = false;
  std::string no_resident = {};  // printable
  std::string trace_id = {};     // of the call, not of the message: see TraceIdOf
};

// Adds every fault of the spec, the cursor and the strings, but for what the transforms' parameters may be
// (TransformChain::Parse); with a fault the result counts for nothing.
OpenFeedArguments FromProto(const v1::OpenFeedRequest& request, Faults& faults);
Result<Cursor> FromProto(const v1::Cursor& cursor);
// kInvalidArgument unless the dtype is known, the shape is possible and sample_bytes is its size.
Result<TensorPlace> FromProto(const v1::TensorPlace& place);

v1::Cursor ToProto(const Cursor& cursor);
v1::TensorPlace ToProto(const TensorPlace& place);

}  // namespace pinfeed
