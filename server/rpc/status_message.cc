// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/status_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <variant>

#include "common/base/quote.h"
#include "common/base/status.h"
#include "server/metrics/figures.h"

namespace pinfeed {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Makes a string valid UTF-8, as proto3 requires. Paths, and errors that quote them, may not be.
std::string Utf8(const std::string& text) {
  return IsUtf8(text) ? text : EscapeName(text);
}

void Fill(const FigureSet& set, Message& out);

// Sets one field of a message, whatever its type.
struct ToField {
  Message& out;
  const FieldDescriptor& field;
  const google::protobuf::Reflection& reflection;

  void operator()(std::monostate /*absent*/) const {}
  void operator()(const FigureHistograms& /*only metrics*/) const {}
  void operator()(bool value) const { Number(value); }
  void operator()(uint64_t value) const { Number(value); }
  void operator()(double value) const { Number(value); }
  void operator()(const FigureCounts& counts) const { Number(counts.Sum()); }
  void operator()(const std::string& text) const { reflection.SetString(&out, &field, Utf8(text)); }
  void operator()(const std::vector<int32_t>& values) const {
    for (const int32_t value : values) reflection.AddInt32(&out, &field, value);
  }
  void operator()(const FigureParts& causes) const {
    Message& parts = *reflection.MutableMessage(&out, &field);
    for (const auto& [cause, value] : causes.parts) {
      const FieldDescriptor* const part = parts.GetDescriptor()->FindFieldByName(std::string(cause));
      parts.GetReflection()->SetDouble(&parts, part, value);
    }
  }
  void operator()(const std::vector<FigureSet>& sets) const {
    for (const FigureSet& set : sets)
      Fill(set, field.is_repeated() ? *reflection.AddMessage(&out, &field)
                                    : *reflection.MutableMessage(&out, &field));
  }

 private:
  template <typename Value>
  void Number(Value value) const {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection.SetBool(&out, &field, value != 0);
      case FieldDescriptor::CPPTYPE_INT32:
        return reflection.SetInt32(&out, &field, static_cast<int32_t>(value));
      case FieldDescriptor::CPPTYPE_UINT32:
        return reflection.SetUInt32(&out, &field, static_cast<uint32_t>(value));
      case FieldDescriptor::CPPTYPE_UINT64:
        return reflection.SetUInt64(&out, &field, static_cast<uint64_t>(value));
      default:
        return reflection.SetDouble(&out, &field, static_cast<double>(value));
    }
  }
};

void Fill(const FigureSet& set, Message& out) {
  for (const FigureEntry& entry : set.entries) {
    if (!IsInMessage(*entry.figure)) continue;
    const std::string name(entry.figure->name);
    const FieldDescriptor* const field = out.GetDescriptor()->FindFieldByName(name);
    PF_CHECK(field != nullptr, "every figure of the message has its field");
    std::visit(ToField{out, *field, *out.GetReflection()}, entry.value);
  }
}

}  // namespace

void FillStatus(const DaemonSnapshot& snapshot, v1::GetStatusResponse& out) {
  Fill(FiguresOf(snapshot), out);
  out.set_backend(Utf8(snapshot.backend));  // with the reason why no GPU can be used
}

void FillDataset(const DatasetInfo& info, v1::ListDatasetsResponse::Dataset& out) {
  out.set_format(info.format);
  out.set_samples(info.samples);
  out.set_fingerprint(info.fingerprint);
  for (const Field& field : info.fields) {
    if (field.on_request) continue;
    v1::TensorPlace& place = *out.add_fields();
    place.set_name(Utf8(field.spec.name));
    // The decoder's output for an encoded image, whose size is known only then.
    const bool encoded = field.kind == FieldKind::kEncodedImage;
    std::vector<int64_t> shape = encoded ? std::vector<int64_t>{-1, -1, 3} : field.spec.shape;
    if (field.kind == FieldKind::kRagged) shape[0] = -1;
    place.set_dtype(static_cast<v1::DType>(encoded ? DType::kUint8 : field.spec.dtype));
    place.mutable_shape()->Add(shape.begin(), shape.end());
  }
  // Escapes backslashes too, so that no name looks like another's escaped form.
  for (const std::string& name : info.classes)
    out.add_classes(name.find('\\') == std::string::npos ? Utf8(name) : EscapeName(name));
}

}  // namespace pinfeed
