// SPDX-License-Identifier: Apache-2.0
// TCP addresses as text, HOST:PORT. Out: whether a text is valid, and listening sockets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// Whether `text` is HOST:PORT with a name, an IPv4 address or a bracketed IPv6 address, and not a path:
// "node7:9468", "[::1]:9468".
bool IsTcpAddress(std::string_view text);

// Whether ListenTcp accepts the text: the host must be a numeric address.
bool IsNumericTcpAddress(const std::string& text);

// "[::1]:9468" -> "::1".
std::string HostOf(std::string_view address);

// Returns a non-blocking listening socket. The host of `address` must be numeric; port 0 selects any free
// port. Errors contain only the native reason; the caller adds the purpose and the remedy.
Result<UniqueFd> ListenTcp(const std::string& address, int backlog);

// The port to which a socket is bound.
Result<uint16_t> BoundPort(const UniqueFd& fd);

}  // namespace pinfeed
