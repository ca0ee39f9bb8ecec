// SPDX-License-Identifier: Apache-2.0
// What an image is extended with beyond its border.
#pragma once

#include <array>
#include <cstdint>

#include "common/base/border.h"

namespace pinfeed {

struct Border {
  BorderMode mode = BorderMode::kConstant;
  std::array<uint8_t, 3> fill{};  // RGB, for kConstant
  bool operator==(const Border&) const = default;
};

}  // namespace pinfeed
