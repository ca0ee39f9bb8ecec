// SPDX-License-Identifier: Apache-2.0
#include "server/net/socket_stream.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <span>

#include "common/os/socket_message.h"

namespace pinfeed {

ssize_t SocketStream::Read(char* to, size_t max_bytes) {
  // The kernel would close descriptors that are not received on this thread.
  SocketMessage message =
      ReceiveSocketMessage(socket_.get(), std::as_writable_bytes(std::span(to, max_bytes)));
  if (message.error == EAGAIN || message.error == EWOULDBLOCK) return kWouldBlock;
  if (message.error != 0) return kBroken;
  if (!message.has_fds()) return static_cast<ssize_t>(message.bytes);
  for (UniqueFd& fd : message.fds) CloseApart(std::move(fd));
  return kBroken;
}

ssize_t SocketStream::Write(const char* from, size_t bytes) {
  while (true) {
    const ssize_t sent = ::send(socket_.get(), from, bytes, MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return kWouldBlock;
    if (errno != EINTR) return kBroken;
  }
}

}  // namespace pinfeed
