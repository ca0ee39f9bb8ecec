// SPDX-License-Identifier: Apache-2.0
// The registry of transforms. A new transform needs a file in this folder, a line here and one in
// registry.cc, a message (proto/pinfeed/v1/feeder.proto) and a Python class
// (client/python/pinfeed/transforms.py).
#pragma once

#include <memory>

#include "server/transform/transform.h"

namespace pinfeed {

std::unique_ptr<const Transform> ParseCenterCrop(Parameters& parameters);
std::unique_ptr<const Transform> ParseGrayscale(Parameters& parameters);
std::unique_ptr<const Transform> ParseNormalize(Parameters& parameters);
std::unique_ptr<const Transform> ParsePad(Parameters& parameters);
std::unique_ptr<const Transform> ParseRandomCrop(Parameters& parameters);
std::unique_ptr<const Transform> ParseRandomHorizontalFlip(Parameters& parameters);
std::unique_ptr<const Transform> ParseRandomResizedCrop(Parameters& parameters);
std::unique_ptr<const Transform> ParseRandomVerticalFlip(Parameters& parameters);
std::unique_ptr<const Transform> ParseResize(Parameters& parameters);
std::unique_ptr<const Transform> ParseToDtype(Parameters& parameters);

}  // namespace pinfeed
