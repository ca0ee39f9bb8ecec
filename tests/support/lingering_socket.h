// SPDX-License-Identifier: Apache-2.0
// A descriptor that takes minutes to close.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_handle.h"
#include "common/os/tcp_address.h"

namespace pinfeed {

inline constexpr int kLingerSeconds = 300;

// A TCP socket whose close() waits until its peer has read, or ends.
class LingeringSocket {
 public:
  LingeringSocket() : listener_(ListenTcp("127.0.0.1:0", 1).value()) {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    PF_CHECK(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0,
             "getsockname");
    fd_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    PF_CHECK(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0, "connect");
    peer_.reset(::accept(listener_.get(), nullptr, nullptr));
    const linger waits{1, kLingerSeconds};
    PF_CHECK(::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &waits, sizeof waits) == 0, "SO_LINGER");
    const std::vector<char> unread(1 << 20);
    while (::send(fd_.get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) {
    }
    PF_CHECK(errno == EAGAIN, "the peer does not read");
  }
  UniqueFd Take() { return std::move(fd_); }

 private:
  const UniqueFd listener_;
  UniqueFd fd_;
  UniqueFd peer_;
};

}  // namespace pinfeed
