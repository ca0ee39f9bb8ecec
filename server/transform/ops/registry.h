// SPDX-License-Identifier: Apache-2.0
// The registry of transforms. A new transform needs a file in this folder, a line here and one in
// registry.cc, a message (proto/pinfeed/v1/feeder.proto) and a Python class
// (client/python/pinfeed/transforms.py).
#pragma once

#include <memory>

#include "server/transform/transform.h"

namespace pinfeed {

std::unique_ptr<const Transform> ParseCenterCrop(TransformParameterReader& parameters);
std::unique_ptr<const Transform> ParseGrayscale(TransformParameterReader& parameters);
std::unique_ptr<const Transform> ParseNormalize(TransformParameterReader& parameters);
std::unique_ptr<const Transform> ParsePad(TransformParameterReader& parameters);
std::unique_ptr<const Transform> ParseRandomCrop(TransformParameterReader& parameters);
std::unique_ptr<const Transform> ParseRandomHorizontalFlip(TransformParameterReader& parameters);
std::unique_ptr<const Transform> ParseRandomResizedCrop(TransformParameterReader& parameters);
std::unique_ptr<const Transform> ParseRandomVerticalFlip(TransformParameterReader& parameters);
std::unique_ptr<const Transform> ParseResize(TransformParameterReader& parameters);
std::unique_ptr<const Transform> ParseToDtype(TransformParameterReader& parameters);

}  // namespace pinfeed
