// SPDX-License-Identifier: Apache-2.0
// Parameters of one value, as tests write them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/spec/parameter_map.h"

namespace pinfeed {

inline ParameterValues Number(double value) {
  return std::vector<double>{value};
}
inline ParameterValues Word(std::string value) {
  return std::vector<std::string>{std::move(value)};
}

}  // namespace pinfeed
