// SPDX-License-Identifier: Apache-2.0
// One descriptor from process to process, as the tests over the stand-in driver and their peer pass it.
#pragma once

#include <poll.h>

#include <cstddef>
#include <utility>

#include "common/os/socket_message.h"

namespace pinfeed {

// With a message of one byte. False when that failed.
inline bool SendFd(int socket, int fd) {
  const std::byte byte{};
  return SendSocketMessage(socket, {&byte, 1}, {&fd, 1}) == 0;
}

// Waits for such a message. None when there came no message, or no descriptor with it.
inline UniqueFd ReceiveFd(int socket) {
  pollfd readable{socket, POLLIN, 0};
  ::poll(&readable, 1, -1);
  std::byte byte{};
  SocketMessage message = ReceiveSocketMessage(socket, {&byte, 1});
  return message.fds.empty() ? UniqueFd() : std::move(message.fds.front());
}

}  // namespace pinfeed
