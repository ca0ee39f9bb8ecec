// SPDX-License-Identifier: Apache-2.0
// Where the daemon is. In: what the caller or the environment says. Out: the path of a Unix socket that
// connect(2) can take, or a TCP address.
#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

namespace pinfeed {

inline constexpr char kDefaultAddress[] = "/run/pinfeed/pinfeed.sock";

// `given` (may be null or empty), else $PINFEED_ADDRESS, else kDefaultAddress. A leading "unix:" is dropped;
// without it HOST:PORT is a TCP address (IsTcpAddress says so of the result).
// kInvalidArgument when the path does not fit a socket address; the message says where the path came from.
Result<std::string> ResolveAddress(const char* given);
// The same for `what` ("open a feed") that only a daemon of this host can do: kInvalidArgument for TCP.
Result<std::string> ResolveLocalAddress(const char* given, std::string_view what);

}  // namespace pinfeed
