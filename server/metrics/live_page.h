// SPDX-License-Identifier: Apache-2.0
// The page at /, made from live.html when the daemon is built.
#pragma once

#include <string_view>

namespace pinfeed {

extern const std::string_view kLivePage;
// Its Content-Security-Policy: its own script and style by their hashes, /status.json, nothing else.
extern const std::string_view kLivePagePolicy;

}  // namespace pinfeed
