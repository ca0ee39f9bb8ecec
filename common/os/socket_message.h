// SPDX-License-Identifier: Apache-2.0
// One message from a Unix socket. In: a socket. Out: its bytes, and every descriptor that came along.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/base/unique_handle.h"

namespace pinfeed {

// Purpose: what one recvmsg gave. Owns the descriptors: the kernel has put them into this process's table,
// asked for or not, so that dropping the message closes them. A value; one thread.
struct SocketMessage {
  int error = 0;     // errno when nothing was received (EAGAIN: nothing is there); the rest is then unset
  size_t bytes = 0;  // in the buffer; 0 with no error and no descriptors: the other side is gone
  bool truncated = false;     // the message was longer than the buffer
  bool fds_lost = false;      // descriptors were dropped: this process is at its limit of open files
  std::vector<UniqueFd> fds;  // close-on-exec
};

// Receives one message into `buffer`. Never blocks.
SocketMessage ReceiveSocketMessage(int socket, std::span<std::byte> buffer);

}  // namespace pinfeed
