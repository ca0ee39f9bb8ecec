// SPDX-License-Identifier: Apache-2.0
// The page at /, generated from live.html at build time.
#pragma once

#include <string_view>

namespace pinfeed {

extern const std::string_view kLivePage;
// Its Content-Security-Policy. It allows only the page's own script and style, by their hashes, and requests
// for /status.json.
extern const std::string_view kLivePagePolicy;

}  // namespace pinfeed
