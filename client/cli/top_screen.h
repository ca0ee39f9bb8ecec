// SPDX-License-Identifier: Apache-2.0
// The screen of `pinfeed top`, as lines. In: two answers of the daemon's, and the time between. Out: what
// happened in it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/cli/json_field.h"

namespace pinfeed {

// `before` and `now` are pinfeed.v1.GetStatusResponse as JSON, of one daemon or of two; null: there is none.
// At most `height` lines of at most `width` letters of ASCII.
std::vector<std::string> TopScreen(const Json& before, const Json& now, double seconds, size_t width,
                                   size_t height);

}  // namespace pinfeed
