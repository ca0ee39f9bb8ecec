// SPDX-License-Identifier: Apache-2.0
#include "server/transform/ops/registry.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace pinfeed {
namespace {

struct Entry {
  std::string_view name;  // of the message's field in pinfeed.v1.Transform
  ParseTransform parse;
};

constexpr Entry kTransforms[] = {
    {"center_crop", ParseCenterCrop},
    {"grayscale", ParseGrayscale},
    {"normalize", ParseNormalize},
    {"pad", ParsePad},
    {"random_crop", ParseRandomCrop},
    {"random_horizontal_flip", ParseRandomHorizontalFlip},
    {"random_resized_crop", ParseRandomResizedCrop},
    {"random_vertical_flip", ParseRandomVerticalFlip},
    {"resize", ParseResize},
    {"to_dtype", ParseToDtype},
};

}  // namespace

ParseTransform FindTransform(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kTransforms), std::end(kTransforms),
                                         [name](const Entry& entry) { return entry.name == name; });
  return found == std::end(kTransforms) ? nullptr : found->parse;
}

}  // namespace pinfeed
