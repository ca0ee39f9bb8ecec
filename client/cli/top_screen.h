// SPDX-License-Identifier: Apache-2.0
// Draws the screen of `pinfeed top` as lines. In: two status responses and the time between them. Out: text
// with the rates between them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/cli/json_field.h"

namespace pinfeed {

// `before` and `now` are pinfeed.v1.GetStatusResponse as JSON, from one daemon or two; null if there is none.
// Returns at most `height` lines of at most `width` ASCII characters.
std::vector<std::string> TopScreen(const Json& before, const Json& now, double seconds, size_t width,
                                   size_t height);

}  // namespace pinfeed
