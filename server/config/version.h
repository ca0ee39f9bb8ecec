// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pinfeed {

// The project's version; CMake defines it.
inline constexpr const char* kVersion = PINFEED_VERSION;

}  // namespace pinfeed
