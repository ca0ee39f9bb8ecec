// SPDX-License-Identifier: Apache-2.0
#include "server/net/socket_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace pinfeed {
namespace {

template <typename Call>
ssize_t RetryInterrupted(const Call& call) {
  while (true) {
    const ssize_t moved = call();
    if (moved >= 0) return moved;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return ByteStream::kWouldBlock;
    if (errno != EINTR) return ByteStream::kBroken;
  }
}

}  // namespace

ssize_t SocketStream::Read(char* to, size_t max_bytes) {
  return RetryInterrupted([&] { return ::read(socket_.get(), to, max_bytes); });
}

ssize_t SocketStream::Write(const char* from, size_t bytes) {
  return RetryInterrupted([&] { return ::send(socket_.get(), from, bytes, MSG_NOSIGNAL); });
}

}  // namespace pinfeed
