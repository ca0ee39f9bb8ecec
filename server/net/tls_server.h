// SPDX-License-Identifier: Apache-2.0
// TLS on the admin port, by OpenSSL. In: TCP connections. Out: decrypted byte streams, once the client
// has shown a certificate of the CA; whether its name may call.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "common/base/unique_handle.h"
#include "server/net/admin_access.h"
#include "server/net/byte_stream.h"

namespace pinfeed {

// "the certificate of 'ops.example', 'spiffe://cluster/ops'".
std::string Describe(const TlsPeer& peer);

// Purpose: makes streams that speak TLS 1.2 or later with clients that have a certificate of the CA, and
// HTTP/2 only. Borrows: the access (outlives it). Threads: one. Errors: a stream's own; a handshake that
// fails breaks it.
class TlsServer {
 public:
  explicit TlsServer(const AdminAccess& access) : access_(access) {}

  // By the certificates in force now. `socket` is a non-blocking one.
  std::unique_ptr<ByteStream> Secure(UniqueFd socket);
  // Empty when one of its names is on the list and its time has not passed: the handshake looked at the
  // dates, but a connection may outlive them.
  std::string Denial(const TlsPeer& peer) const;

 private:
  using Context = std::shared_ptr<SSL_CTX>;
  static Context MakeContext(const TlsIdentity& identity);

  const AdminAccess& access_;
  uint64_t known_ = 0;
  Context context_;  // of `known_`
};

}  // namespace pinfeed
