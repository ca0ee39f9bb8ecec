// SPDX-License-Identifier: Apache-2.0
// What the parameters of transforms have in common: probabilities, and sizes of images.
#pragma once

#include <string>

#include "common/spec/parameter_reader.h"
#include "server/image/image.h"

namespace pinfeed {

// Purpose: gives one transform its parameters.
class Parameters : public ParameterReader {
 public:
  using ParameterReader::ParameterReader;

  double Probability(const std::string& name);  // 0.5 if not given

  // "size": the sides of an image in pixels, within kMaxImageSide and kMaxImagePixels. One value is a square.
  ImageSize Size();
  // The same of a "size" that has two values.
  ImageSize Size(double height, double width);
  // Whether it is a length in pixels that an image can have. A fault otherwise.
  bool CheckSide(const std::string& name, double side);
};

}  // namespace pinfeed
