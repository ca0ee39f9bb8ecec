// SPDX-License-Identifier: Apache-2.0
#include "server/transform/transform_parameter_reader.h"

#include <cmath>

namespace pinfeed {

double TransformParameterReader::Probability(const std::string& name) {
  const double p = Number(name, 0.5);
  if (p >= 0 && p <= 1) return p;
  Fault(name, NumberText(p) + " is not within 0 to 1");
  return 0;
}

bool TransformParameterReader::CheckSide(const std::string& name, double side) {
  if (side >= 1 && side <= kMaxImageSide && side == std::floor(side)) return true;
  Fault(name, NumberText(side) + " is not within 1 to " + std::to_string(kMaxImageSide));
  return false;
}

ImageSize TransformParameterReader::Size() {
  std::vector<double> sides = Numbers("size");
  if (sides.size() == 1) {
    sides.push_back(sides.front());
    Set("size", sides);
  }
  if (sides.size() == 2) return Size(sides[0], sides[1]);
  Fault("size", "has " + std::to_string(sides.size()) + " values; give one, or height and width");
  return {1, 1};
}

ImageSize TransformParameterReader::Size(double height, double width) {
  bool sides = CheckSide("size", height);
  if (width != height) sides = CheckSide("size", width) && sides;
  if (!sides) return {1, 1};
  const ImageSize size{static_cast<int32_t>(width), static_cast<int32_t>(height)};
  if (int64_t{size.height} * size.width <= kMaxImagePixels) return size;
  Fault("size", std::to_string(size.height) + " x " + std::to_string(size.width) + " is over the limit of " +
                    std::to_string(kMaxImagePixels) + " pixels");
  return {1, 1};
}

}  // namespace pinfeed
