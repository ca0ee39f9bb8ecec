// SPDX-License-Identifier: Apache-2.0
// A transform as requested by a client. Only its file in server/transform/ops knows the meaning of its name
// and parameters.
#pragma once

#include <string>

#include "common/spec/parameter_map.h"

namespace pinfeed {

struct TransformSpec {
  std::string name;         // "resize"
  ParameterMap parameters;  // only the given ones
  bool operator==(const TransformSpec&) const = default;
};

}  // namespace pinfeed
