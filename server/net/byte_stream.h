// SPDX-License-Identifier: Apache-2.0
// A client's end of a connection: as it is, or by TLS.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace pinfeed {

// Who is at the other end of TLS. Of a Unix socket the kernel says it (Peer).
struct TlsPeer {
  std::vector<std::string> names;  // of the certificate
  std::string certificate;         // PEM
};

// Purpose: non-blocking reads and writes. Threads: one at a time. Errors: kBroken, after which there is
// nothing left to read or write.
class ByteStream {
 public:
  static constexpr ssize_t kLater = -1;   // when the descriptor is ready
  static constexpr ssize_t kBroken = -2;  // see fault()

  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;

  virtual int fd() const = 0;
  // How many bytes, 0 at the end, or one of the above.
  virtual ssize_t Read(char* to, size_t most) = 0;
  virtual ssize_t Write(const char* from, size_t bytes) = 0;
  // Whether bytes wait that the descriptor does not tell of.
  virtual bool has_more() const { return false; }
  // Whether reading waits until something can be written.
  virtual bool needs_to_write() const { return false; }
  // Null until the handshake is over, and of a Unix socket.
  virtual const TlsPeer* peer() const { return nullptr; }
  // Why it is broken, if there is more to say than that the other side is gone.
  virtual const std::string& fault() const = 0;
};

}  // namespace pinfeed
