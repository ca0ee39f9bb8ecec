// SPDX-License-Identifier: Apache-2.0
// The daemon's address. In: the caller's argument or the environment. Out: the path of a Unix socket, or a
// TCP address.
#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

namespace pinfeed {

inline constexpr char kDefaultAddress[] = "/run/pinfeed/pinfeed.sock";

// Returns `given` unless it is null or empty, else $PINFEED_ADDRESS, else kDefaultAddress. Drops a leading
// "unix:"; without it, HOST:PORT is a TCP address (test the result with IsTcpAddress). Returns
// kInvalidArgument, naming the origin, if the path is too long for a socket address.
Result<std::string> ResolveAddress(const char* given);
// The same for an operation `what` ("open a feed") that needs a daemon on this host. The path is absolute, so
// that it is that of the same socket after a chdir, unless it is then too long for one. A TCP address is
// kInvalidArgument.
Result<std::string> ResolveLocalAddress(const char* given, std::string_view what);

}  // namespace pinfeed
