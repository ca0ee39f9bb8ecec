// SPDX-License-Identifier: Apache-2.0
// A TLS identity. In: three PEM files. Out: their checked contents, so that an error names the file instead
// of appearing as a failed handshake.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace pinfeed {

// `name` is the option or key that set the path: "admin_key", "--tls-key".
struct TlsFile {
  std::string name;
  std::string path;
};
struct TlsFiles {
  TlsFile ca;           // CAs that the peer's certificate must be issued by
  TlsFile certificate;  // own certificate, with intermediates
  TlsFile key;          // private key of the certificate, without a passphrase
};

// The local side of a connection.
enum class TlsSide { kServer, kClient };

struct TlsIdentity {
  std::string ca;  // PEM, like the next two
  std::string certificate;
  std::string key;
  std::chrono::system_clock::time_point valid_from;
  std::chrono::system_clock::time_point valid_until;
  std::chrono::system_clock::time_point ca_valid_until;  // of `ca`, the certificate that expires last

  bool operator==(const TlsIdentity&) const = default;
};

// kInvalidArgument names the file and the remedy. Causes:
// - a file cannot be read or is not PEM;
// - other users may read the key;
// - the key does not match the certificate;
// - TLS on this host rejects the key or the certificate, because the key is too short, the key type is
//   unsupported, or the signature is too weak;
// - the certificate's key usage excludes that side.
// Validity dates are not checked.
Result<TlsIdentity> ReadTlsIdentity(const TlsFiles& files, TlsSide side);

// "expired on 2026-01-31 12:00:00 UTC" or "is not valid before ..."; empty while the certificate is valid.
std::string ValidityFault(const TlsIdentity& identity, std::chrono::system_clock::time_point now);
// The same for the first certificate of a PEM text; "cannot be read" when there is none.
std::string ValidityFault(std::string_view pem, std::chrono::system_clock::time_point now);

std::string UtcText(std::chrono::system_clock::time_point time);

}  // namespace pinfeed
