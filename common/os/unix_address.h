// SPDX-License-Identifier: Apache-2.0
// The path of a Unix socket as the address that system calls take.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string_view>

#include "common/base/status.h"

namespace pinfeed {

inline constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;

// Calls bind(2) or connect(2) with the path. Precondition: path.size() <= kMaxSocketPath.
inline int AtSocketPath(int (*call)(int, const sockaddr*, socklen_t), int fd, std::string_view path) {
  PF_CHECK(path.size() <= kMaxSocketPath, path);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  return call(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

}  // namespace pinfeed
