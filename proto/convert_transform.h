// SPDX-License-Identifier: Apache-2.0
// One transform of a spec, from the wire. In: a message of which nothing is believed. Out: a checked value.
#pragma once

#include <optional>
#include <string>

#include "common/feed_spec.h"
#include "pinfeed/v1/feeder.pb.h"
#include "proto/faults.h"

namespace pinfeed {

// Nothing when it names no operation; other faults leave a value that is not to be used. `at` leads each
// fault, as "transforms[1]".
std::optional<Transform> TransformFromProto(const v1::Transform& in, const std::string& at, Faults& faults);

}  // namespace pinfeed
