// SPDX-License-Identifier: Apache-2.0
// One message of a Unix socket, with descriptors. In: a socket. Out: what was received, or what became of it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/base/unique_handle.h"

namespace pinfeed {

// Purpose: the result of one recvmsg. Owns the descriptors: the kernel installs them in this process whether
// requested or not, and destroying the message closes them. Move-only. Threads: one at a time.
struct SocketMessage {
  int error = 0;           // errno if nothing was received (EAGAIN: no message yet); the rest is then unset
  size_t bytes = 0;        // received into the buffer
  bool truncated = false;  // the message was longer than the buffer
  bool fds_lost = false;   // descriptors were dropped: this process is at its limit of open files
  std::vector<UniqueFd> fds;  // close-on-exec

  bool has_fds() const { return !fds.empty() || fds_lost; }
  // Whether it is none: the peer has closed.
  bool is_end() const { return error == 0 && bytes == 0 && !has_fds(); }
};

// Receives one message into `buffer`. Never blocks.
SocketMessage ReceiveSocketMessage(int socket, std::span<std::byte> buffer);

// Sends one message with descriptors, which stay open here. Never blocks. Returns 0, or errno if it was not
// sent whole. Precondition: at most 253 descriptors.
int SendSocketMessage(int socket, std::span<const std::byte> bytes, std::span<const int> fds);

}  // namespace pinfeed
