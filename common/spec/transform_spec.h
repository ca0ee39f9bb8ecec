// SPDX-License-Identifier: Apache-2.0
// A transform as a client asks for it. What its name and parameters mean is known to one file of
// server/transform/ops alone.
#pragma once

#include <string>

#include "common/spec/parameters.h"

namespace pinfeed {

struct TransformSpec {
  std::string name;         // "resize"
  ParameterMap parameters;  // only those that were given
  bool operator==(const TransformSpec&) const = default;
};

}  // namespace pinfeed
