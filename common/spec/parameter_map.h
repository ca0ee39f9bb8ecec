// SPDX-License-Identifier: Apache-2.0
// Named values of a spec whose meaning one file knows: a transform's parameters, a dataset format's options.
#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

namespace pinfeed {

// Numbers (flags are 0 or 1), or words.
using ParameterValues = std::variant<std::vector<double>, std::vector<std::string>>;
using ParameterMap = std::map<std::string, ParameterValues>;

}  // namespace pinfeed
