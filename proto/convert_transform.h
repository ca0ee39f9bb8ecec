// SPDX-License-Identifier: Apache-2.0
// One transform of a spec, from the wire. In: a message of which nothing is believed. Out: a value, and what
// of the message no value can hold.
#pragma once

#include <string>

#include "common/base/faults.h"
#include "common/spec/feed_spec.h"
#include "pinfeed/v1/feeder.pb.h"

namespace pinfeed {

// What the value may be is for CheckFeedSpec; with a fault it is one in which that finds none. `at` leads
// each fault, as "transforms[1]".
Transform TransformFromProto(const v1::Transform& in, const std::string& at, Faults& faults);

}  // namespace pinfeed
