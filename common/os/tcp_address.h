// SPDX-License-Identifier: Apache-2.0
// Addresses of TCP as texts, HOST:PORT. Out: whether a text is one, and sockets that listen there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// HOST:PORT with a name, an IPv4 or a bracketed IPv6 address, and not a path: "node7:9468", "[::1]:9468".
bool IsTcpAddress(std::string_view text);

// Whether ListenTcp can make anything of it: one whose host is an address, and no name.
bool IsNumericTcpAddress(const std::string& text);

// "[::1]:9468" -> "::1".
std::string HostOf(std::string_view address);

// A non-blocking socket that listens; the host of `address` is numeric, port 0 is any free one. Errors have
// the native reason alone: what it was for and what to do is the caller's to say.
Result<UniqueFd> ListenTcp(const std::string& address, int backlog);

// The port that a socket is bound to.
Result<uint16_t> BoundPort(const UniqueFd& fd);

}  // namespace pinfeed
