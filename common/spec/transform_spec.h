// SPDX-License-Identifier: Apache-2.0
// A transform as a client asks for it. What its name and parameters mean is known to one file of
// server/transform/ops alone.
#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

namespace pinfeed {

struct TransformSpec {
  // Numbers (flags are 0 or 1), or words.
  using Parameter = std::variant<std::vector<double>, std::vector<std::string>>;

  std::string name;                             // "resize"
  std::map<std::string, Parameter> parameters;  // only those that were given
  bool operator==(const TransformSpec&) const = default;
};

}  // namespace pinfeed
