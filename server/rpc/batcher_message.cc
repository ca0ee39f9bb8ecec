// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/batcher_message.h"

namespace pinfeed {

void DescribePlace(const BatcherPlace& place, v1::BatcherInvitation& out) {
  const BatcherSpec& spec = place.queue->spec();
  const BatchLayout& layout = place.memory->layout();
  out.set_memory_bytes(place.memory->mapped_bytes());
  out.set_slot_count(place.memory->slot_count());
  out.set_slot_stride(place.memory->slot_stride());
  out.set_max_answer_bytes(spec.max_answer_bytes);
  if (place.consumer) {
    out.set_answer_offset(layout.tensors[kAnswersTensor].offset);
    out.set_length_offset(layout.tensors[kLengthsTensor].offset);
    out.set_batch_size(layout.batch_size);
  } else {
    out.set_max_request_bytes(static_cast<uint32_t>(layout.tensors[kRequestTensor].sample_bytes));
    out.set_answer_offset(layout.tensors[kAnswerTensor].offset);
  }
  if (!spec.array) return;
  v1::ProducedField& array = *out.mutable_array();
  array.set_dtype(static_cast<v1::DType>(spec.array->dtype));
  array.mutable_shape()->Add(spec.array->shape.begin(), spec.array->shape.end());
}

}  // namespace pinfeed
