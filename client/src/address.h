// SPDX-License-Identifier: Apache-2.0
// Where the daemon is. In: what the caller or the environment says. Out: the path of a Unix socket that
// connect(2) can take.
#pragma once

#include <string>

#include "common/result.h"

namespace pinfeed {

inline constexpr char kDefaultAddress[] = "/run/pinfeed/pinfeed.sock";

// `given` (may be null or empty), else $PINFEED_ADDRESS, else kDefaultAddress. A leading "unix:" is dropped.
// kInvalidArgument when the path does not fit a socket address; the message says where the path came from.
Result<std::string> ResolveAddress(const char* given);

}  // namespace pinfeed
