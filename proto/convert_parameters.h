// SPDX-License-Identifier: Apache-2.0
// Parts of a spec whose meaning the conversion need not know. In: messages of numbers, flags and strings, of
// which nothing is believed. Out: their fields by name, as they came.
#pragma once

#include <google/protobuf/message.h>

#include "common/spec/transform_spec.h"
#include "pinfeed/v1/feeder.pb.h"

namespace pinfeed {

// The fields that are set.
ParameterMap ParametersFromProto(const google::protobuf::Message& in);

// A message of numbers, flags and strings needs nothing here: its name and its fields' are those in the spec.
// The name is empty if the operation is not known, which is for TransformChain::Parse to say.
TransformSpec TransformFromProto(const v1::Transform& in);

}  // namespace pinfeed
