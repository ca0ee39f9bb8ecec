// SPDX-License-Identifier: Apache-2.0
// One transform of a spec, from the wire. In: a message of which nothing is believed. Out: its name and
// parameters as they came, whatever they are.
#pragma once

#include "common/spec/transform_spec.h"
#include "pinfeed/v1/feeder.pb.h"

namespace pinfeed {

// A message of numbers, flags and strings needs nothing here: its name and its fields' are those in the spec.
// The name is empty if the operation is not known, which is for TransformChain::Parse to say.
TransformSpec TransformFromProto(const v1::Transform& in);

}  // namespace pinfeed
