// SPDX-License-Identifier: Apache-2.0
// A ByteStream over a plain socket.
#pragma once

#include <string>
#include <utility>

#include "common/os/foreign_fds.h"
#include "server/net/byte_stream.h"

namespace pinfeed {

// Purpose: reads and writes. Owns: the socket, which is non-blocking. Threads: one at a time. Errors:
// ByteStream's; a message with descriptors breaks it.
class SocketStream final : public ByteStream {
 public:
  explicit SocketStream(UniqueConnection socket) : socket_(std::move(socket)) {}

  int fd() const override { return socket_.get(); }
  ssize_t Read(char* to, size_t max_bytes) override;
  ssize_t Write(const char* from, size_t bytes) override;
  const std::string& fault() const override { return fault_; }

 private:
  const UniqueConnection socket_;
  const std::string fault_;
};

}  // namespace pinfeed
