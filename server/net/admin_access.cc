// SPDX-License-Identifier: Apache-2.0
#include "server/net/admin_access.h"

#include <algorithm>
#include <utility>

namespace pinfeed {

bool AdminAccess::SetIdentity(TlsIdentity identity) {
  const MutexLock lock(mutex_);
  if (identity == identity_) return false;
  identity_ = std::move(identity);
  ++number_;
  return true;
}

void AdminAccess::SetClients(std::vector<std::string> clients) {
  const MutexLock lock(mutex_);
  clients_ = std::move(clients);
}

std::optional<AdminAccess::Version> AdminAccess::NewerThan(uint64_t known) const {
  const MutexLock lock(mutex_);
  if (known == number_) return std::nullopt;
  return Version{number_, identity_};
}

std::optional<std::string> AdminAccess::Admit(const std::vector<std::string>& names) const {
  const MutexLock lock(mutex_);
  const auto found = std::find_first_of(names.begin(), names.end(), clients_.begin(), clients_.end());
  if (found == names.end()) return std::nullopt;
  return *found;
}

}  // namespace pinfeed
