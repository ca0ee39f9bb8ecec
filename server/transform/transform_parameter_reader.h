// SPDX-License-Identifier: Apache-2.0
// Reads the parameters that several transforms share: probabilities and image sizes.
#pragma once

#include <string>

#include "common/spec/parameter_reader.h"
#include "server/image/image.h"

namespace pinfeed {

// Purpose: reads the parameters of one transform.
class TransformParameterReader : public ParameterReader {
 public:
  using ParameterReader::ParameterReader;

  double Probability(const std::string& name);  // 0.5 if omitted

  // Reads "size": the sides of an image in pixels, within kMaxImageSide and kMaxImagePixels. One value means
  // a square.
  ImageSize Size();
  // Checks two values of "size" that were read already.
  ImageSize Size(double height, double width);
  // Returns whether an image can have a side of this length; adds a fault otherwise.
  bool CheckSide(const std::string& name, double side);
};

}  // namespace pinfeed
