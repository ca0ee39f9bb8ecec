// SPDX-License-Identifier: Apache-2.0
// Certificate and client allow-list of the TCP admin port. In: the configuration, at the start and after each
// reload. Out: the TLS identity for handshakes; which clients may call.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "common/tls/tls_identity.h"

namespace pinfeed {

// Purpose: holds the admin port's TLS identity and allow-list while reloads replace them. Threads: any.
// Errors: none. Invariant: certificate, key and CA come from the same load.
class AdminAccess {
 public:
  AdminAccess(TlsIdentity identity, std::vector<std::string> clients)
      : identity_(std::move(identity)), clients_(std::move(clients)) {}

  // Applies to new connections. Returns false if `identity` is already in force.
  bool SetIdentity(TlsIdentity identity) PF_EXCLUDES(mutex_);
  // Applies to new calls, over open connections too.
  void SetClients(std::vector<std::string> clients) PF_EXCLUDES(mutex_);

  // When nobody is served any more: the certificate in force, or the last one of its CAs, has expired.
  std::chrono::system_clock::time_point valid_until() const PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return std::min(identity_.valid_until, identity_.ca_valid_until);
  }

  struct Version {
    uint64_t number = 0;
    TlsIdentity identity;
  };
  // Returns the identity if its version is not `known`. Pass 0 if no version is known.
  std::optional<Version> NewerThan(uint64_t known) const PF_EXCLUDES(mutex_);
  // Returns the first of a certificate's names that is on the allow-list.
  std::optional<std::string> Admit(const std::vector<std::string>& names) const PF_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  uint64_t number_ PF_GUARDED_BY(mutex_) = 1;
  TlsIdentity identity_ PF_GUARDED_BY(mutex_);
  std::vector<std::string> clients_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
