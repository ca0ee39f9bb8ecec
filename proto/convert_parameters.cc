// SPDX-License-Identifier: Apache-2.0
#include "proto/convert_parameters.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <utility>
#include <vector>

namespace pinfeed {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

ParameterValues ParameterFromProto(const Message& in, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *in.GetReflection();
  const int count = field.is_repeated() ? reflection.FieldSize(in, &field) : 1;
  const auto values = [&](auto get, auto get_repeated) {
    std::vector<std::conditional_t<std::is_same_v<decltype(get()), std::string>, std::string, double>> all;
    all.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) all.push_back(field.is_repeated() ? get_repeated(i) : get());
    return ParameterValues(std::move(all));
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return values([&] { return reflection.GetUInt32(in, &field); },
                    [&](int i) { return reflection.GetRepeatedUInt32(in, &field, i); });
    case FieldDescriptor::CPPTYPE_INT32:
      return values([&] { return reflection.GetInt32(in, &field); },
                    [&](int i) { return reflection.GetRepeatedInt32(in, &field, i); });
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return values([&] { return reflection.GetDouble(in, &field); },
                    [&](int i) { return reflection.GetRepeatedDouble(in, &field, i); });
    case FieldDescriptor::CPPTYPE_BOOL:
      return values([&] { return reflection.GetBool(in, &field); },
                    [&](int i) { return reflection.GetRepeatedBool(in, &field, i); });
    case FieldDescriptor::CPPTYPE_STRING:
      return values([&] { return reflection.GetString(in, &field); },
                    [&](int i) { return reflection.GetRepeatedString(in, &field, i); });
    default:  // no message of a transform has another
      return {};
  }
}

}  // namespace

ParameterMap ParametersFromProto(const google::protobuf::Message& in) {
  ParameterMap out;
  std::vector<const FieldDescriptor*> fields;
  in.GetReflection()->ListFields(in, &fields);
  for (const FieldDescriptor* const field : fields) out[field->name()] = ParameterFromProto(in, *field);
  return out;
}

TransformSpec TransformFromProto(const v1::Transform& in) {
  TransformSpec out;
  const FieldDescriptor* const op =
      in.GetReflection()->GetOneofFieldDescriptor(in, v1::Transform::descriptor()->oneof_decl(0));
  if (op == nullptr) return out;
  out.name = op->name();
  const Message& message = in.GetReflection()->GetMessage(in, op);
  out.parameters = ParametersFromProto(message);
  return out;
}

}  // namespace pinfeed
