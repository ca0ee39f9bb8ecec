// SPDX-License-Identifier: Apache-2.0
// The way out: the core's values as messages. Nothing can fail here.
#include "proto/convert.h"

namespace pinfeed {
namespace {

v1::FeedSpec::Order ToProto(Order order) {
  switch (order) {
    case Order::kSequential:
      return v1::FeedSpec::SEQUENTIAL;
    case Order::kShuffle:
      return v1::FeedSpec::SHUFFLE;
  }
  return v1::FeedSpec::ORDER_UNSPECIFIED;
}

}  // namespace

v1::FeedSpec::Backend ToProto(Backend backend) {
  switch (backend) {
    case Backend::kAuto:
      return v1::FeedSpec::AUTO;
    case Backend::kHost:
      return v1::FeedSpec::HOST;
    case Backend::kCudaIpc:
      return v1::FeedSpec::CUDA_IPC;
    case Backend::kVmmFd:
      return v1::FeedSpec::VMM_FD;
  }
  return v1::FeedSpec::BACKEND_UNSPECIFIED;
}

v1::FeedSpec::Decode ToProto(Decode decode) {
  switch (decode) {
    case Decode::kCpu:
      return v1::FeedSpec::DECODE_CPU;
    case Decode::kGpu:
      return v1::FeedSpec::DECODE_GPU;
    case Decode::kAuto:
      return v1::FeedSpec::DECODE_AUTO;
  }
  return v1::FeedSpec::DECODE_UNSPECIFIED;
}

v1::FeedSpec::Resident ToProto(Resident resident) {
  switch (resident) {
    case Resident::kOff:
      return v1::FeedSpec::RESIDENT_OFF;
    case Resident::kOn:
      return v1::FeedSpec::RESIDENT_ON;
    case Resident::kAuto:
      return v1::FeedSpec::RESIDENT_AUTO;
  }
  return v1::FeedSpec::RESIDENT_UNSPECIFIED;
}

v1::Cursor ToProto(const Cursor& cursor) {
  v1::Cursor out;
  out.set_version(cursor.version);
  out.set_fingerprint(cursor.fingerprint);
  out.set_seed(cursor.seed);
  out.set_epoch(cursor.epoch);
  out.set_position(cursor.position);
  if (cursor.order) out.set_order(ToProto(*cursor.order));
  return out;
}

v1::TensorPlace ToProto(const TensorPlace& place) {
  v1::TensorPlace out;
  out.set_name(place.spec.name);
  out.set_dtype(static_cast<v1::DType>(place.spec.dtype));
  out.mutable_shape()->Add(place.spec.shape.begin(), place.spec.shape.end());
  out.set_offset(place.offset);
  out.set_sample_bytes(place.sample_bytes);
  if (place.spec.lengths) out.set_lengths(*place.spec.lengths + 1);
  if (place.spec.extents) {
    out.set_extents(*place.spec.extents + 1);
    out.set_shape(0, -1);  // clients that do not know packed tensors refuse it
  }
  return out;
}

}  // namespace pinfeed
