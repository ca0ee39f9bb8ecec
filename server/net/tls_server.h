// SPDX-License-Identifier: Apache-2.0
// TLS on the admin port, by OpenSSL. In: TCP connections. Out: decrypted byte streams from clients with a
// certificate of the CA, and whether such a client may call.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "common/base/unique_handle.h"
#include "server/net/admin_access.h"
#include "server/net/byte_stream.h"

namespace pinfeed {

// Returns "the certificate of 'ops.example', 'spiffe://cluster/ops'".
std::string Describe(const TlsPeer& peer);

// Purpose: makes streams that speak TLS 1.2 or later, with client certificates of the CA, and HTTP/2 only.
// Borrows: the access (outlives it). Threads: one. Errors: the stream's own; a failed handshake breaks the
// stream.
class TlsServer {
 public:
  explicit TlsServer(const AdminAccess& access) : access_(access) {}

  // Uses the identity in force now. Precondition: `socket` is non-blocking.
  std::unique_ptr<ByteStream> Secure(UniqueFd socket);
  // Returns why the peer may not call; empty if it may. Checks the allow-list and the certificate's expiry,
  // because a connection may outlive a certificate that was valid at the handshake.
  std::string DenialReason(const TlsPeer& peer) const;

 private:
  using Context = std::shared_ptr<SSL_CTX>;
  static Context MakeContext(const TlsIdentity& identity);

  const AdminAccess& access_;
  uint64_t known_ = 0;
  Context context_;  // made from version `known_`
};

}  // namespace pinfeed
