// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/offer_message.h"

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/quote.h"
#include "proto/convert.h"
#include "proto/convert_enums.h"

namespace pinfeed {
namespace {

v1::SampleView ToMessage(const SampleView& view) {
  v1::SampleView out;
  out.set_seed(view.seed);
  out.set_source_height(view.source_height);
  out.set_source_width(view.source_width);
  out.set_crop_x(view.crop_x);
  out.set_crop_y(view.crop_y);
  out.set_positions_x(view.positions_x);
  out.set_positions_y(view.positions_y);
  out.set_border(view.border);
  out.mutable_fill()->Add(std::begin(view.fill), std::end(view.fill));
  for (uint32_t i = 0; i < view.step_count; ++i) {
    v1::SampleView::Step& step = *out.add_steps();
    step.set_kind(static_cast<v1::SampleView::Step::Kind>(view.steps[i].kind));
    step.set_transform(view.steps[i].transform);
    step.set_p(view.steps[i].p);
  }
  return out;
}

v1::DeferredPixelOps ToMessage(const DeferredPixelOps& ops) {
  v1::DeferredPixelOps out;
  out.set_height(ops.height);
  out.set_width(ops.width);
  out.set_channels(ops.channels);
  out.set_source_layout(EnumToProto(ops.source_layout, kImageLayouts));
  out.set_output_layout(EnumToProto(ops.output_layout, kImageLayouts));
  out.set_mark_tensor(ops.mark ? *ops.mark + 1 : 0);
  out.set_plan_tensor(ops.plan ? *ops.plan + 1 : 0);
  out.mutable_table()->Add(ops.table.begin(), ops.table.end());
  return out;
}

// Describes the tensors that the client makes from a slot on its GPU: the slot's tensors, without what only
// the deferred pixel operations need, and with these.
void DescribeOutputs(const Feed& feed, v1::OpenFeedResponse* response) {
  const std::optional<DeferredPixelOps>& ops = feed.producer().deferred_pixel_ops();
  const std::shared_ptr<const ResidentData> resident = feed.producer().resident();
  const std::vector<TensorPlace>& tensors =
      resident != nullptr ? resident->arena().layout().tensors : feed.layout().tensors;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    if (ops && (ops->mark == i || (ops->plan && (ops->plan == i || tensors[ops->tensor].spec.extents == i))))
      continue;
    const bool image = ops && ops->tensor == i;
    const TensorSpec& spec = image ? ops->output : tensors[i].spec;
    v1::OutputTensor& output = *response->add_outputs();
    output.set_name(spec.name);
    output.set_dtype(static_cast<v1::DType>(spec.dtype));
    output.mutable_shape()->Add(spec.shape.begin(), spec.shape.end());
    if (spec.packed()) output.set_shape(0, -1);
    output.set_tensor(i);
    if (image) *output.mutable_image() = ToMessage(*ops);
    if (image && resident != nullptr)
      *output.mutable_image()->mutable_view() = ToMessage(feed.producer().resident_plan()->view);
  }
}

void DescribeResident(const ResidentData& data, v1::ResidentOffer* offer) {
  const Arena& arena = data.arena();
  offer->set_id(arena.id().data(), arena.id().size());
  offer->set_bytes(arena.mapped_bytes());
  offer->set_id_offset(arena.bytes());
  offer->set_samples(arena.layout().batch_size);
  for (const TensorPlace& place : arena.layout().tensors) *offer->add_tensors() = ToProto(place);
}

v1::DecodeOffer DescribeDecode(const Feed& feed) {
  const FeedSpec& spec = feed.spec();
  v1::DecodeOffer decode;
  decode.set_decode(EnumToProto(spec.decode, kDecodes));
  decode.set_gpu_share(spec.gpu_share);
  decode.set_note(feed.decode_note());
  decode.set_zero_bad_samples(spec.on_bad_sample == OnBadSample::kZero);
  const std::vector<TensorPlace>& tensors = feed.layout().tensors;
  for (uint32_t i = 0; i < tensors.size() && spec.sample_ids; ++i)
    if (tensors[i].spec.name == kSampleIdTensor) decode.set_sample_id_tensor(i + 1);
  return decode;
}

}  // namespace

void DescribeOffer(const Session& session, const std::string& lifeline_path, uint64_t server_epoch,
                   v1::OpenFeedResponse* response) {
  const Feed& feed = *session.feed;
  const Arena& arena = session.arena();
  response->set_session_id(session.id);
  response->set_token(session.token.data(), session.token.size());
  response->set_server_epoch(server_epoch);
  response->set_batch_size(feed.layout().batch_size);
  for (const TensorPlace& place : feed.layout().tensors) *response->add_tensors() = ToProto(place);
  v1::ArenaOffer& offer = *response->mutable_arena();
  offer.set_backend(EnumToProto(arena.backend(), kBackends));
  offer.set_id(arena.id().data(), arena.id().size());
  offer.set_bytes(arena.mapped_bytes());
  offer.set_slot_count(arena.slot_count());
  offer.set_slot_stride(arena.slot_stride());
  if (const auto handle = arena.ipc_handle()) offer.set_cuda_ipc_handle(handle->data(), handle->size());
  offer.set_read_only(feed.spec().sharing != Sharing::kExclusive);
  response->set_fingerprint(feed.dataset().fingerprint);
  response->set_dataset_samples(feed.dataset().samples);
  response->set_batches_per_epoch(feed.sampler().batches_per_epoch());
  *response->mutable_start() = ToProto(StartCursor(session));
  response->set_lifeline_path(lifeline_path);
  response->set_fallback(session.fallback);
  response->set_refuses_unknown_fields(true);
  response->set_replaceable(feed.spec().sharing != Sharing::kExclusive);
  *response->mutable_classes() = {feed.dataset().classes.begin(), feed.dataset().classes.end()};
  if (feed.spec().fields.empty()) {
    for (const auto& [name, why] : feed.dataset().left_out)
      response->add_left_out(QuotePath(name) + ": " + why);
  }
  if (session.resident != nullptr) DescribeResident(*session.resident, response->mutable_resident());
  response->set_resident_note(feed.resident_note());
  if (arena.backend() != Backend::kHost || DecodesOnGpu(feed.spec()) || session.resident != nullptr)
    DescribeOutputs(feed, response);
  *response->mutable_decode() = DescribeDecode(feed);
}

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
