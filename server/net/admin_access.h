// SPDX-License-Identifier: Apache-2.0
// The TCP endpoint's papers: the certificate that it shows, and whose it takes. In: what is configured, now
// and after a reload. Out: answers to handshakes and calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "common/tls/tls_identity.h"

namespace pinfeed {

// Purpose: answers while the configuration changes. Threads: any. Errors: none. Invariant: certificate, key
// and CA are of one reading.
class AdminAccess {
 public:
  AdminAccess(TlsIdentity identity, std::vector<std::string> clients)
      : identity_(std::move(identity)), clients_(std::move(clients)) {}

  // For connections from now on. False when it is the one in force.
  bool SetIdentity(TlsIdentity identity) PF_EXCLUDES(mutex_);
  // For calls from now on, over connections that there are too.
  void SetClients(std::vector<std::string> clients) PF_EXCLUDES(mutex_);

  // The end of the validity of the certificate in force.
  std::chrono::system_clock::time_point valid_until() const PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return identity_.valid_until;
  }

  struct Version {
    uint64_t number = 0;
    TlsIdentity identity;
  };
  // Nothing when it is `known` already, a number given before; 0: none is.
  std::optional<Version> NewerThan(uint64_t known) const PF_EXCLUDES(mutex_);
  // The first of a certificate's names that is on the list.
  std::optional<std::string> Admit(const std::vector<std::string>& names) const PF_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  uint64_t number_ PF_GUARDED_BY(mutex_) = 1;
  TlsIdentity identity_ PF_GUARDED_BY(mutex_);
  std::vector<std::string> clients_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
