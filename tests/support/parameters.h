// SPDX-License-Identifier: Apache-2.0
// Parameters of one value, as tests write them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/spec/parameters.h"

namespace pinfeed {

inline Parameter Number(double value) {
  return std::vector<double>{value};
}
inline Parameter Word(std::string value) {
  return std::vector<std::string>{std::move(value)};
}

}  // namespace pinfeed
