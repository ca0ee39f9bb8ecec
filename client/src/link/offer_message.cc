// SPDX-License-Identifier: Apache-2.0
#include "client/src/link/offer_message.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "proto/convert.h"
#include "proto/convert_enums.h"

namespace pinfeed {
namespace {

// Copied unchecked: CheckOffer validates it, but for lists, whose lengths are checked here.
Result<SampleView> ViewOf(const v1::SampleView& message, uint32_t height, uint32_t width) {
  SampleView view{};
  if (message.fill_size() != 3 || message.steps_size() > static_cast<int>(kMaxViewSteps))
    return Internal("the daemon's offer is unusable: a view of an image has too many steps or values");
  view.seed = message.seed();
  view.source_height = message.source_height();
  view.source_width = message.source_width();
  view.height = height;
  view.width = width;
  view.crop_x = message.crop_x();
  view.crop_y = message.crop_y();
  view.positions_x = message.positions_x();
  view.positions_y = message.positions_y();
  view.border = message.border();
  std::copy(message.fill().begin(), message.fill().end(), view.fill);
  for (const v1::SampleView::Step& step : message.steps())
    view.steps[view.step_count++] = {step.p(), step.transform(), static_cast<uint32_t>(step.kind())};
  return view;
}

// As the above.
Result<OfferedOutput> OutputOf(const v1::OutputTensor& message) {
  OfferedOutput output;
  output.spec.name = message.name();
  output.spec.dtype = static_cast<DType>(message.dtype() & 0xFF);
  output.spec.shape.assign(message.shape().begin(), message.shape().end());
  output.tensor = message.tensor();
  if (!message.has_image()) return output;
  const v1::DeferredPixelOps& ops = message.image();
  OfferedImage& image = output.image.emplace();
  image.height = ops.height();
  image.width = ops.width();
  image.channels = ops.channels();
  image.source_layout = EnumFromProto(ops.source_layout(), kImageLayouts).value_or(ImageLayout::kChw);
  image.output_layout = EnumFromProto(ops.output_layout(), kImageLayouts).value_or(ImageLayout::kChw);
  if (ops.mark_tensor() != 0) image.mark = ops.mark_tensor() - 1;
  if (ops.plan_tensor() != 0) image.plan = ops.plan_tensor() - 1;
  image.table.assign(ops.table().begin(), ops.table().end());
  if (ops.has_view()) {
    ASSIGN_OR_RETURN(image.view, ViewOf(ops.view(), image.height, image.width));
  }
  return output;
}

Result<std::vector<TensorPlace>> PlacesOf(
    const google::protobuf::RepeatedPtrField<v1::TensorPlace>& tensors) {
  std::vector<TensorPlace> places;
  for (const v1::TensorPlace& tensor : tensors) {
    Result<TensorPlace> place = FromProto(tensor);
    if (!place.ok()) return Internal("the daemon's offer is unusable: " + place.status().message());
    places.push_back(std::move(place).value());
  }
  return places;
}

Result<OfferedResident> ResidentOf(const v1::ResidentOffer& message) {
  OfferedResident resident;
  if (message.id().size() != resident.id.size()) return Internal("the daemon's resident samples have no id");
  std::memcpy(resident.id.data(), message.id().data(), resident.id.size());
  resident.bytes = message.bytes();
  resident.layout.slot_stride = message.id_offset();
  if (message.samples() == 0 || message.samples() >= kZeroIndex)
    return Internal("the daemon offers " + std::to_string(message.samples()) + " resident samples");
  resident.layout.batch_size = static_cast<uint32_t>(message.samples());
  ASSIGN_OR_RETURN(resident.layout.tensors, PlacesOf(message.tensors()));
  return resident;
}

}  // namespace

Result<FeedOffer> OfferOf(const v1::OpenFeedResponse& response) {
  FeedOffer offer;
  offer.end_first = response.end_first();
  if (offer.end_first) return offer;
  if (response.token().size() != offer.token.size()) {
    return Internal("the daemon's token has " + std::to_string(response.token().size()) +
                    " bytes, expected " + std::to_string(offer.token.size()));
  }
  std::copy(response.token().begin(), response.token().end(), offer.token.begin());
  offer.session_id = response.session_id();
  offer.replaceable = response.replaceable();
  offer.lifeline_path = response.lifeline_path();
  offer.layout.batch_size = response.batch_size();
  offer.layout.slot_stride = response.arena().slot_stride();
  ASSIGN_OR_RETURN(offer.layout.tensors, PlacesOf(response.tensors()));
  offer.slot_count = response.arena().slot_count();
  offer.arena_bytes = response.arena().bytes();
  // Without a backend it is kAuto, which CheckOffer refuses.
  offer.backend = EnumFromProto(response.arena().backend(), kBackends).value_or(Backend::kAuto);
  offer.read_only = response.arena().read_only();
  offer.fallback = response.fallback();
  offer.fingerprint = response.fingerprint();
  offer.dataset_samples = response.dataset_samples();
  offer.batches_per_epoch = response.batches_per_epoch();
  Result<Cursor> start = FromProto(response.start());
  if (!start.ok()) return Internal("the daemon's offer is unusable: " + start.status().message());
  offer.start = std::move(start).value();
  offer.classes = {response.classes().begin(), response.classes().end()};
  offer.left_out = {response.left_out().begin(), response.left_out().end()};
  for (const v1::OutputTensor& message : response.outputs()) {
    ASSIGN_OR_RETURN(OfferedOutput output, OutputOf(message));
    offer.outputs.push_back(std::move(output));
  }
  if (response.has_resident()) {
    ASSIGN_OR_RETURN(offer.resident, ResidentOf(response.resident()));
  }
  offer.resident_note = response.resident_note();
  const v1::DecodeOffer& decode = response.decode();
  const std::optional<Decode> decoded = EnumFromProto(decode.decode(), kDecodes);
  if (!decoded && decode.decode() != v1::FeedSpec::DECODE_UNSPECIFIED)
    return Internal("the daemon decodes in a way that this library does not know");
  offer.decode = decoded.value_or(Decode::kCpu);
  offer.gpu_share = decode.gpu_share();
  offer.decode_note = decode.note();
  offer.zero_bad_samples = decode.zero_bad_samples();
  if (decode.sample_id_tensor() != 0) offer.sample_id_tensor = decode.sample_id_tensor() - 1;
  RETURN_IF_ERROR(CheckOffer(offer));
  if (offer.backend != Backend::kHost) {
    if (response.arena().id().size() != offer.arena_id.size())
      return Internal("the daemon's arena has no id");
    const auto* const id = reinterpret_cast<const std::byte*>(response.arena().id().data());
    std::copy(id, id + offer.arena_id.size(), offer.arena_id.begin());
  }
  if (offer.backend == Backend::kCudaIpc) {
    const std::string& handle = response.arena().cuda_ipc_handle();
    if (handle.size() != offer.ipc_handle.size()) {
      return Internal("the daemon's handle has " + std::to_string(handle.size()) + " bytes, expected " +
                      std::to_string(offer.ipc_handle.size()));
    }
    std::memcpy(offer.ipc_handle.data(), handle.data(), handle.size());
  }
  return offer;
}

}  // namespace pinfeed
