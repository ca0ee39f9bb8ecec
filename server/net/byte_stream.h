// SPDX-License-Identifier: Apache-2.0
// The client's side of a connection: a plain socket or TLS.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace pinfeed {

// The other side of a TLS connection. For a Unix socket, the kernel names the peer (see Peer).
struct TlsPeer {
  std::vector<std::string> names;  // from the certificate
  std::string certificate;         // PEM
};

// Purpose: non-blocking reads and writes. Threads: one at a time. Errors: kBroken, after which every read and
// write fails.
class ByteStream {
 public:
  static constexpr ssize_t kWouldBlock = -1;  // try again when the descriptor is ready
  static constexpr ssize_t kBroken = -2;      // see fault()

  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;

  virtual int fd() const = 0;
  // Both return the number of bytes moved, 0 at the end of the stream, kWouldBlock or kBroken.
  virtual ssize_t Read(char* to, size_t max_bytes) = 0;
  virtual ssize_t Write(const char* from, size_t bytes) = 0;
  // Whether decrypted bytes are buffered, which polling the descriptor does not show.
  virtual bool has_more() const { return false; }
  // Whether the next read has to wait until the socket is writable.
  virtual bool needs_to_write() const { return false; }
  // Null until the TLS handshake is complete, and always for a Unix socket.
  virtual const TlsPeer* peer() const { return nullptr; }
  // Why the stream is broken; empty if the peer just closed it.
  virtual const std::string& fault() const = 0;
};

}  // namespace pinfeed
