// SPDX-License-Identifier: Apache-2.0
// The way out: the core's values as messages. Nothing can fail here.
#include "proto/convert.h"
#include "proto/convert_enums.h"

namespace pinfeed {

v1::Cursor ToProto(const Cursor& cursor) {
  v1::Cursor out;
  out.set_version(cursor.version);
  out.set_fingerprint(cursor.fingerprint);
  out.set_seed(cursor.seed);
  out.set_epoch(cursor.epoch);
  out.set_position(cursor.position);
  if (cursor.order) out.set_order(EnumToProto(*cursor.order, kOrders));
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
