// SPDX-License-Identifier: Apache-2.0
#include "server/transform/ops/interpolation.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace pinfeed {

InterpolationChoice::InterpolationChoice(TransformParameterReader& parameters) {
  static constexpr std::string_view kNames[] = {"nearest", "bilinear", "bicubic", "lanczos"};
  for (const std::string& word : parameters.Words("interpolation", {"bilinear"})) {
    const auto* const found = std::find(std::begin(kNames), std::end(kNames), word);
    if (found == std::end(kNames)) {
      parameters.Fault("interpolation", "is none of nearest, bilinear, bicubic, lanczos");
    } else {
      choices_.push_back(static_cast<Interpolation>(found - std::begin(kNames)));
    }
  }
  if (choices_.empty()) choices_.push_back(Interpolation::kBilinear);
}

}  // namespace pinfeed
