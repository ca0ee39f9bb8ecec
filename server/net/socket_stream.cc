// SPDX-License-Identifier: Apache-2.0
#include "server/net/socket_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace pinfeed {
namespace {

template <typename Move>
ssize_t Try(const Move& move) {
  while (true) {
    const ssize_t moved = move();
    if (moved >= 0) return moved;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return ByteStream::kLater;
    if (errno != EINTR) return ByteStream::kBroken;
  }
}

}  // namespace

ssize_t SocketStream::Read(char* to, size_t most) {
  return Try([&] { return ::read(socket_.get(), to, most); });
}

ssize_t SocketStream::Write(const char* from, size_t bytes) {
  return Try([&] { return ::send(socket_.get(), from, bytes, MSG_NOSIGNAL); });
}

}  // namespace pinfeed
