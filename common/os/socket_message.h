// SPDX-License-Identifier: Apache-2.0
// Receives one message from a Unix socket. In: a socket. Out: its bytes and all descriptors sent with it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/base/unique_handle.h"

namespace pinfeed {

// Purpose: the result of one recvmsg. Owns the descriptors: the kernel installs them in this process whether
// requested or not, and destroying the message closes them. A value; one thread.
struct SocketMessage {
  int error = 0;              // errno when nothing was received (EAGAIN: no message); the rest is then unset
  size_t bytes = 0;           // in the buffer; 0 without error and descriptors: the peer has closed
  bool truncated = false;     // the message was longer than the buffer
  bool fds_lost = false;      // descriptors were dropped: this process is at its limit of open files
  std::vector<UniqueFd> fds;  // close-on-exec
};

// Receives one message into `buffer`. Never blocks.
SocketMessage ReceiveSocketMessage(int socket, std::span<std::byte> buffer);

}  // namespace pinfeed
