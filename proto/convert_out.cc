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

v1::FeedSpec::OnBadSample ToProto(OnBadSample on_bad_sample) {
  switch (on_bad_sample) {
    case OnBadSample::kFail:
      return v1::FeedSpec::FAIL;
    case OnBadSample::kSkip:
      return v1::FeedSpec::SKIP;
    case OnBadSample::kZero:
      return v1::FeedSpec::ZERO;
  }
  return v1::FeedSpec::ON_BAD_SAMPLE_UNSPECIFIED;
}

v1::FeedSpec::Sharing ToProto(Sharing sharing) {
  switch (sharing) {
    case Sharing::kExclusive:
      return v1::FeedSpec::EXCLUSIVE;
    case Sharing::kBroadcast:
      return v1::FeedSpec::BROADCAST;
    case Sharing::kQueue:
      return v1::FeedSpec::QUEUE;
  }
  return v1::FeedSpec::SHARING_UNSPECIFIED;
}

// Writes one transform; overloads chosen by std::visit.
struct TransformWriter {
  v1::Transform& out;

  void operator()(const Resize& op) const {
    v1::Resize& resize = *out.mutable_resize();
    if (op.height != 0) resize.add_size(op.height);
    if (op.width != 0) resize.add_size(op.width);
    resize.set_max_size(op.max_size);
  }
  void operator()(const CenterCrop& op) const {
    out.mutable_center_crop()->add_size(op.height);
    out.mutable_center_crop()->add_size(op.width);
  }
  void operator()(const RandomResizedCrop& op) const {
    v1::RandomResizedCrop& crop = *out.mutable_random_resized_crop();
    crop.add_size(op.height);
    crop.add_size(op.width);
    crop.add_scale(op.scale_min);
    crop.add_scale(op.scale_max);
    crop.add_ratio(op.ratio_min);
    crop.add_ratio(op.ratio_max);
  }
  void operator()(const RandomHorizontalFlip& op) const { out.mutable_random_horizontal_flip()->set_p(op.p); }
  void operator()(const Normalize& op) const {
    out.mutable_normalize()->mutable_mean()->Add(op.mean.begin(), op.mean.end());
    out.mutable_normalize()->mutable_std()->Add(op.std.begin(), op.std.end());
  }
  void operator()(const ToDtype& op) const {
    out.mutable_to_dtype()->set_dtype(std::string(DTypeName(op.dtype)));
    out.mutable_to_dtype()->set_scale(op.scale);
  }
};

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

v1::FeedSpec ToProto(const FeedSpec& spec) {
  v1::FeedSpec out;
  v1::DatasetSpec& dataset = *out.mutable_dataset();
  dataset.set_name(spec.dataset.name);
  dataset.set_path(spec.dataset.path);
  dataset.set_format(spec.dataset.format);
  dataset.set_sequence_length(spec.dataset.sequence_length);
  dataset.set_stride(spec.dataset.stride);
  if (spec.dataset.token_dtype) dataset.set_token_dtype(std::string(DTypeName(*spec.dataset.token_dtype)));
  out.set_batch_size(spec.batch_size);
  out.set_order(ToProto(spec.order));
  out.set_seed(spec.seed);
  out.set_epochs(spec.epochs);
  out.set_drop_last(spec.drop_last);
  out.set_rank(spec.rank);
  out.set_world_size(spec.world_size);
  for (const Transform& transform : spec.transforms)
    std::visit(TransformWriter{*out.add_transforms()}, transform);
  out.set_image_layout(spec.image_layout == ImageLayout::kHwc ? v1::FeedSpec::HWC : v1::FeedSpec::CHW);
  out.set_on_bad_sample(ToProto(spec.on_bad_sample));
  out.set_slots(spec.slots);
  out.set_sample_ids(spec.sample_ids);
  out.set_sharing(ToProto(spec.sharing));
  out.set_group(spec.group);
  out.set_group_size(spec.group_size);
  out.set_backend(ToProto(spec.backend));
  return out;
}

v1::Cursor ToProto(const Cursor& cursor) {
  v1::Cursor out;
  out.set_version(kCursorVersion);
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
  return out;
}

}  // namespace pinfeed
