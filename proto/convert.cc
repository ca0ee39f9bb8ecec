// SPDX-License-Identifier: Apache-2.0
#include "proto/convert.h"

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
#include <vector>

#include "common/base/faults.h"
#include "common/spec/feed_spec_check.h"
#include "proto/convert_enums.h"
#include "proto/convert_parameters.h"

namespace pinfeed {
namespace {

std::string Unknown(int value) {
  return std::to_string(value) + " is not a known value";
}

// kUnspecified when it is not known.
DType DTypeFromProto(v1::DType in) {
  const bool known = in > 0 && in <= static_cast<int>(DType::kComplex128);
  return known ? static_cast<DType>(in) : DType::kUnspecified;
}

DatasetSpec DatasetFromProto(const v1::DatasetSpec& in) {
  DatasetSpec out{
      .name = in.name(), .path = in.path(), .format = in.format(), .options = ParametersFromProto(in)};
  for (const char* const own : {"name", "path", "format", "produced"}) out.options.erase(own);
  if (!in.has_produced()) return out;
  const v1::ProducedDataset& produced = in.produced();
  out.produced = ProducedDataset{produced.name(),        produced.samples(), {},
                                 produced.fingerprint(), produced.lanes(),   produced.task_timeout_ms()};
  for (const v1::ProducedField& field : produced.fields()) {
    out.produced->fields.push_back(
        {field.name(), DTypeFromProto(field.dtype()), {field.shape().begin(), field.shape().end()}});
  }
  return out;
}

std::optional<BatcherSpec> BatcherFromProto(const v1::FeedSpec& in) {
  if (!in.has_batcher()) return std::nullopt;
  const v1::Batcher& batcher = in.batcher();
  BatcherSpec out{batcher.max_delay_us(),     batcher.queue_limit(), batcher.max_request_bytes(),
                  batcher.max_answer_bytes(), std::nullopt,          batcher.redeal()};
  if (batcher.has_array()) {
    const v1::ProducedField& array = batcher.array();
    out.array = TensorSpec{"", DTypeFromProto(array.dtype()), {array.shape().begin(), array.shape().end()}};
  }
  return out;
}

// An unset value leaves `out` as it is, and so does one that is not known, which is a fault.
template <typename Wire, typename Out, typename Values>
void ReadEnum(Wire in, const Values& values, const std::string& field, Out& out, Faults& faults) {
  const auto known = EnumFromProto(in, values);
  if (known) out = *known;
  if (!known && in != Wire{}) faults.Add(field, Unknown(in));
}

// A field that only a newer client knows would be ignored, and the feed would not be what was asked for.
// `place` is the message's in the spec, as "transforms[1].resize"; empty for the spec.
void RefuseUnknownFields(const google::protobuf::Message& message, const std::string& place, Faults& faults) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  if (!unknown.empty()) {
    faults.Add(place.empty() ? "spec" : place,
               "has a field (number " + std::to_string(unknown.field(0).number()) +
                   ") that this daemon does not know: the client is newer; install the same pinfeed on both "
                   "sides");
  }
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const auto* const field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string name = (place.empty() ? "" : place + ".") + field->name();
    if (!field->is_repeated()) {
      RefuseUnknownFields(reflection.GetMessage(message, field), name, faults);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      RefuseUnknownFields(reflection.GetRepeatedMessage(message, field, i),
                          name + "[" + std::to_string(i) + "]", faults);
    }
  }
}

// Says first what has no place in a FeedSpec, then what is wrong with the rest.
FeedSpec SpecFromProto(const v1::FeedSpec& in, Faults& faults) {
  FeedSpec out;
  out.dataset = DatasetFromProto(in.dataset());
  ReadEnum(in.order(), kOrders, "order", out.order, faults);
  ReadEnum(in.image_layout(), kImageLayouts, "image_layout", out.image_layout, faults);
  ReadEnum(in.on_bad_sample(), kBadSampleRules, "on_bad_sample", out.on_bad_sample, faults);
  ReadEnum(in.sharing(), kSharings, "sharing", out.sharing, faults);
  ReadEnum(in.backend(), kBackends, "backend", out.backend, faults);
  ReadEnum(in.decode(), kDecodes, "decode", out.decode, faults);
  ReadEnum(in.resident(), kResidents, "resident", out.resident, faults);
  out.batch_size = in.batch_size();
  out.seed = in.seed();
  out.epochs = in.epochs();
  out.drop_last = in.drop_last();
  out.rank = in.rank();
  out.world_size = in.world_size() == 0 ? 1 : in.world_size();
  if (in.transforms_size() > kMaxTransforms) {
    faults.Add("transforms", "has " + std::to_string(in.transforms_size()) + " entries, at most " +
                                 std::to_string(kMaxTransforms) + " are possible");
  } else {
    for (const v1::Transform& transform : in.transforms())
      out.transforms.push_back(TransformFromProto(transform));
  }
  out.slots = in.slots();
  out.sample_ids = in.sample_ids();
  out.valid = in.valid();
  out.masks = {in.masks().begin(), in.masks().end()};
  out.fields_unchanged = {in.fields_unchanged().begin(), in.fields_unchanged().end()};
  out.ignore_exif_orientation = in.ignore_exif_orientation();
  out.group = in.group();
  out.fields.assign(in.fields().begin(), in.fields().end());
  out.sample_path = in.sample_path();
  for (const v1::PaddedField& padded : in.pad()) out.pad.push_back({padded.field(), padded.rows()});
  std::ranges::sort(out.pad, {}, &PaddedField::field);  // specs that mean the same compare equal
  out.group_size = in.group_size() == 0 ? 1 : in.group_size();
  out.gpu_share = in.gpu_share();
  out.encoded_images = in.encoded_images();
  out.batcher = BatcherFromProto(in);
  if (in.transforms_size() <= kMaxTransforms) RefuseUnknownFields(in, "", faults);
  CheckFeedSpec(out, faults);
  return out;
}

Cursor CursorFromProto(const v1::Cursor& in, Faults& faults) {
  if (in.version() < 1 || in.version() > kCursorVersion) {
    faults.Add("cursor.version", std::to_string(in.version()) + " is none of the versions 1 to " +
                                     std::to_string(kCursorVersion) +
                                     " that this pinfeed reads; was the cursor made by a newer one?");
  }
  const std::string& fingerprint = in.fingerprint();
  const bool hex = std::all_of(fingerprint.begin(), fingerprint.end(),
                               [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (!fingerprint.empty() && (fingerprint.size() != 16 || !hex))
    faults.Add("cursor.fingerprint", "is not 16 hexadecimal digits");
  std::optional<Order> order;
  ReadEnum(in.order(), kOrders, "cursor.order", order, faults);
  return Cursor{fingerprint, in.seed(), in.epoch(), in.position(), order, in.version()};
}

}  // namespace

OpenFeedArguments FromProto(const v1::OpenFeedRequest& request, Faults& faults) {
  OpenFeedArguments out;
  if (request.has_spec()) {
    out.spec = SpecFromProto(request.spec(), faults);
  } else {
    faults.Add("spec", "is missing");
  }
  if (request.has_cursor()) out.cursor = CursorFromProto(request.cursor(), faults);
  CheckText(request.gpu_uuid(), kMaxNameBytes, "gpu_uuid", faults);
  CheckText(request.client_name(), kMaxClientNameBytes, "client_name", faults);
  if (request.failed_backends_size() > 2) {
    faults.Add("failed_backends", "has " + std::to_string(request.failed_backends_size()) +
                                      " entries; there are two backends that can fail");
    return out;
  }
  for (const v1::FailedBackend& failed : request.failed_backends()) {
    const bool mapped =
        failed.backend() == v1::FeedSpec::VMM_FD || failed.backend() == v1::FeedSpec::CUDA_IPC;
    const Backend backend = failed.backend() == v1::FeedSpec::VMM_FD ? Backend::kVmmFd : Backend::kCudaIpc;
    if (!mapped) faults.Add("failed_backends", Unknown(failed.backend()));
    CheckText(failed.reason(), kMaxReasonBytes, "failed_backends.reason", faults);
    for (const FailedBackend& other : out.failed_backends) {
      if (mapped && other.backend == backend) faults.Add("failed_backends", "names a backend twice");
    }
    out.failed_backends.push_back({backend, failed.reason()});
  }
  out.gpu_uuid = request.gpu_uuid();
  out.client_name = request.client_name();
  out.replaces_session = request.replaces_session();
  CheckText(request.no_gpu_decoder(), kMaxReasonBytes, "no_gpu_decoder", faults);
  out.decodes_on_gpu = request.decodes_on_gpu();
  out.no_gpu_decoder = request.no_gpu_decoder();
  out.shares_decoded = request.shares_decoded();
  CheckText(request.no_resident(), kMaxReasonBytes, "no_resident", faults);
  out.no_resident = request.no_resident();
  return out;
}

Result<Cursor> FromProto(const v1::Cursor& cursor) {
  Faults faults;
  Cursor out = CursorFromProto(cursor, faults);
  RETURN_IF_ERROR(faults.ToStatus());
  return out;
}

Result<TensorPlace> FromProto(const v1::TensorPlace& place) {
  const DType dtype = DTypeFromProto(place.dtype());
  if (dtype == DType::kUnspecified)
    return InvalidArgument("tensor " + place.name() + ": dtype " + Unknown(place.dtype()));
  TensorPlace out{.spec = TensorSpec{place.name(), dtype, {place.shape().begin(), place.shape().end()}},
                  .offset = place.offset(),
                  .sample_bytes = place.sample_bytes()};
  if (place.lengths() != 0) out.spec.lengths = place.lengths() - 1;
  if (place.extents() != 0) {
    out.spec.extents = place.extents() - 1;
    if (out.spec.shape.empty() || out.spec.shape[0] != -1)
      return InvalidArgument("tensor " + place.name() + ": it is packed, but its first dimension is not -1");
    out.spec.shape[0] = 1;
    ASSIGN_OR_RETURN(const uint64_t row_bytes, out.spec.SampleBytes());
    if (row_bytes == 0) return InvalidArgument("tensor " + place.name() + ": it is packed, of empty rows");
    out.spec.shape[0] = static_cast<int64_t>(out.sample_bytes / row_bytes);
  }
  ASSIGN_OR_RETURN(const uint64_t sample_bytes, out.spec.SampleBytes());
  if (sample_bytes != out.sample_bytes) {
    return InvalidArgument("tensor " + place.name() + ": sample_bytes " + std::to_string(out.sample_bytes) +
                           " is not its size of " + std::to_string(sample_bytes));
  }
  return out;
}

}  // namespace pinfeed
