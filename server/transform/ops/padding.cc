// SPDX-License-Identifier: Apache-2.0
#include "server/transform/ops/padding.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace pinfeed {
namespace {

bool IsWholeWithin(double value, double most) {
  return value >= 0 && value <= most && value == std::floor(value);
}

// One value for all sides, two for left and right, top and bottom, or left, top, right, bottom.
void ReadSides(TransformParameterReader& parameters, Padding& padding) {
  std::vector<double> sides = parameters.Numbers("padding", {0});
  if (sides.size() != 1 && sides.size() != 2 && sides.size() != 4) {
    return parameters.Fault("padding", "has " + std::to_string(sides.size()) +
                                           " values; give one, or left/right and top/bottom, or left, top, "
                                           "right, bottom");
  }
  for (const double side : sides) {
    if (IsWholeWithin(side, kMaxImageSide)) continue;
    return parameters.Fault("padding",
                            NumberText(side) + " is not within 0 to " + std::to_string(kMaxImageSide));
  }
  const size_t count = sides.size();
  const auto side = [&](size_t i) { return static_cast<int32_t>(sides[i % count]); };
  padding.left = side(0);
  padding.top = side(1);
  padding.right = side(2);
  padding.bottom = side(3);
}

void ReadFill(TransformParameterReader& parameters, Padding& padding) {
  const std::vector<double> fill = parameters.Numbers("fill", {0});
  if (fill.size() != 1 && fill.size() != 3) {
    return parameters.Fault("fill",
                            "has " + std::to_string(fill.size()) + " values; give one, or one a channel");
  }
  padding.fill_values = fill.size();
  for (size_t channel = 0; channel < 3; ++channel) {
    const double value = fill[channel % fill.size()];
    if (!IsWholeWithin(value, 255))
      return parameters.Fault("fill", NumberText(value) + " is not within 0 to 255");
    padding.border.fill[channel] = static_cast<uint8_t>(value);
  }
}

}  // namespace

Padding ReadPadding(TransformParameterReader& parameters) {
  static constexpr std::string_view kModes[] = {"constant", "edge", "reflect", "symmetric"};
  Padding padding;
  ReadSides(parameters, padding);
  ReadFill(parameters, padding);
  const std::string mode = parameters.Word("padding_mode", "constant");
  const auto* const found = std::find(std::begin(kModes), std::end(kModes), mode);
  if (found == std::end(kModes)) {
    parameters.Fault("padding_mode", "is none of constant, edge, reflect, symmetric");
  } else {
    padding.border.mode = static_cast<BorderMode>(found - std::begin(kModes));
  }
  if (padding.border.mode != BorderMode::kConstant && padding.FillsWithColour())
    parameters.Fault("fill", "goes with the padding_mode constant only");
  return padding;
}

void CheckFill(const Padding& padding, const ImageForm& form, const Transform::Report& report) {
  if (padding.fill_values > form.channels)
    report("fill has 3 values, but the images have one channel; give one value");
}

}  // namespace pinfeed
