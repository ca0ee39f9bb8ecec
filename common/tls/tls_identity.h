// SPDX-License-Identifier: Apache-2.0
// Who one is in TLS. In: three PEM files. Out: what they hold, checked, so that a fault is told by its file
// and not by a handshake that fails.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace pinfeed {

// `name` is what whoever gave the path calls it: "admin_key", "--tls-key".
struct TlsFile {
  std::string name;
  std::string path;
};
struct TlsFiles {
  TlsFile ca;           // whom the other side's certificate must be from
  TlsFile certificate;  // one's own, with those between it and its CA
  TlsFile key;          // of the certificate, without a passphrase
};

// Which side of a connection one is.
enum class TlsSide { kServer, kClient };

struct TlsIdentity {
  std::string ca;  // these three as PEM
  std::string certificate;
  std::string key;
  std::chrono::system_clock::time_point valid_from;
  std::chrono::system_clock::time_point valid_until;

  bool operator==(const TlsIdentity&) const = default;
};

// kInvalidArgument, with the file and what to do, when one cannot be read or is no PEM, when others may read
// the key, when it is not the certificate's, when TLS on this host takes neither (a key that is too short or
// of a kind that no handshake ends with, a signature that is too weak), or when the certificate says that it
// is not for that side. Dates are not looked at.
Result<TlsIdentity> ReadTlsIdentity(const TlsFiles& files, TlsSide side);

// "expired on 2026-01-31 12:00:00 UTC", "is not valid before ..."; empty while it is valid.
std::string ValidityFault(const TlsIdentity& identity, std::chrono::system_clock::time_point now);
// The same of the first certificate of a PEM text; "cannot be read" when there is none.
std::string ValidityFault(std::string_view pem, std::chrono::system_clock::time_point now);

std::string UtcText(std::chrono::system_clock::time_point time);

}  // namespace pinfeed
