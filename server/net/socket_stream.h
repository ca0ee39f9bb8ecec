// SPDX-License-Identifier: Apache-2.0
// A ByteStream over a plain socket.
#pragma once

#include <string>
#include <utility>

#include "common/base/unique_handle.h"
#include "server/net/byte_stream.h"

namespace pinfeed {

// Purpose: read(2) and write(2). Owns: the socket, which is non-blocking. Threads: one at a time. Errors:
// ByteStream's.
class SocketStream final : public ByteStream {
 public:
  explicit SocketStream(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const override { return socket_.get(); }
  ssize_t Read(char* to, size_t max_bytes) override;
  ssize_t Write(const char* from, size_t bytes) override;
  const std::string& fault() const override { return fault_; }

 private:
  const UniqueFd socket_;
  const std::string fault_;
};

}  // namespace pinfeed
