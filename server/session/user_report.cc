// SPDX-License-Identifier: Apache-2.0
#include "server/session/user_report.h"

#include <map>

namespace pinfeed {

void FillUsers(const MemoryBudget& pool, const HostMemoryQuarantine& kept, const SessionTable& sessions,
               const DeviceArenas* devices, const MemoryBudget* cache, DaemonSnapshot& snapshot) {
  snapshot.kept_bytes = kept.bytes();
  std::map<uid_t, UserSnapshot> users;
  for (const auto& [uid, count] : sessions.by_user()) users[uid].sessions = count;
  for (const auto& [uid, bytes] : pool.used_by_user()) users[uid].pool_bytes = bytes;
  snapshot.user_limits.sessions = sessions.max_per_user();
  snapshot.user_limits.pool_bytes = pool.max_per_user();
  if (devices != nullptr) {
    for (const auto& [uid, bytes] : devices->UsedByUser()) {
      users[uid].pinned_bytes = bytes.pinned;
      users[uid].gpu_bytes = bytes.device;
    }
    const DeviceArenas::UserBytes limits = devices->MaxPerUser();
    snapshot.user_limits.pinned_bytes = limits.pinned;
    snapshot.user_limits.gpu_bytes = limits.device;
  }
  if (cache != nullptr) {
    for (const auto& [uid, bytes] : cache->used_by_user()) users[uid].cache_bytes = bytes;
    snapshot.user_limits.cache_bytes = cache->max_per_user();
  }
  for (auto& [uid, user] : users) {
    user.uid = uid;
    snapshot.users.push_back(user);
  }
}

}  // namespace pinfeed
