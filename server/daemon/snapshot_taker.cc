// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/snapshot_taker.h"

#include <algorithm>
#include <map>
#include <utility>

#include "server/config/version.h"
#include "server/daemon/daemon_parts.h"
#include "server/net/descriptor_room.h"

namespace pinfeed {
namespace {

// Fills what concerns users. `cache`: the budget of the decoded cache, or null.
void FillUsers(const DaemonParts& parts, const MemoryBudget* cache, DaemonSnapshot& snapshot) {
  std::map<uid_t, UserSnapshot> users;
  for (const auto& [uid, count] : parts.sessions->by_user()) users[uid].sessions = count;
  for (const auto& [uid, bytes] : parts.pool->used_by_user()) users[uid].pool_bytes = bytes;
  snapshot.user_limits.sessions = parts.sessions->max_per_user();
  snapshot.user_limits.pool_bytes = parts.pool->max_per_user();
  if (parts.devices != nullptr) {
    for (const auto& [uid, bytes] : parts.devices->UsedByUser()) {
      users[uid].pinned_bytes = bytes.pinned;
      users[uid].gpu_bytes = bytes.device;
    }
    const DeviceArenas::UserBytes limits = parts.devices->MaxPerUser();
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

}  // namespace

DaemonSnapshot SnapshotTaker::Take() const {
  DaemonSnapshot snapshot;
  snapshot.version = kVersion;
  snapshot.server_epoch = server_epoch_;
  snapshot.uptime_seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  snapshot.ready = state_.ready();
  if (const auto began = state_.drain_began()) {
    snapshot.draining = true;
    snapshot.draining_seconds = std::chrono::duration<double>(Clock::now() - *began).count();
  }
  snapshot.workers = parts_.workers->threads();
  snapshot.workers_busy = parts_.workers->busy();
  snapshot.worker_chunks = parts_.workers->progress() + parts_.readers->progress();
  snapshot.worker_chunk_age_seconds =
      std::chrono::duration<double>(std::max(parts_.workers->LongestChunk(), parts_.readers->LongestChunk()))
          .count();
  snapshot.sample_durations = parts_.workers->durations();
  const WorkerPool::Durations fetches = parts_.readers->durations();
  snapshot.sample_durations.read += fetches.read;
  snapshot.sample_durations.decode += fetches.decode;
  snapshot.pool_capacity_bytes = parts_.pool->capacity_bytes();
  snapshot.pool_used_bytes = parts_.pool->used_bytes();
  snapshot.open_fds = CountOpenFds();
  snapshot.max_fds = static_cast<uint32_t>(std::min<uint64_t>(DescriptorLimit(), UINT32_MAX));
  snapshot.cpu_seconds = CpuSeconds();
  snapshot.started_unix_seconds = std::chrono::duration<double>(started_at_.time_since_epoch()).count();
  snapshot.config_good = config_.good();
  snapshot.config_unix_seconds =
      std::chrono::duration<double>(config_.loaded_at().time_since_epoch()).count();
  if (parts_.admin_access) {
    snapshot.admin_certificate_until_unix_seconds =
        std::chrono::duration<double>(parts_.admin_access->valid_until().time_since_epoch()).count();
  }
  snapshot.resident_bytes = ResidentBytes();
  FeedTable::View feeds = parts_.feeds.Snapshot();
  snapshot.feeds = std::move(feeds.feeds);
  snapshot.totals = feeds.totals;
  parts_.sessions->AddTo(snapshot.feeds);
  const SessionTable::Counts sessions = parts_.sessions->counts();
  snapshot.sessions_opened = sessions.opened;
  snapshot.sessions_closed = sessions.closed;
  snapshot.fallbacks = sessions.fallbacks;
  snapshot.max_sessions = parts_.sessions->limit();
  snapshot.refusals = parts_.refusals.counts();
  snapshot.refused_requests = parts_.refusals.codes();
  snapshot.backend = parts_.backend;
  if (parts_.devices != nullptr) snapshot.gpus = parts_.devices->Snapshot();
  snapshot.hung = parts_.progress->Hung(snapshot.gpus);
  const MemoryBudget* cache_budget = nullptr;
  if (parts_.cache) {
    cache_budget = &parts_.cache->budget();
    const DecodedCache::Counts cache = parts_.cache->counts();
    snapshot.cache_capacity_bytes = cache_budget->capacity_bytes();
    snapshot.cache_used_bytes = cache_budget->used_bytes();
    snapshot.cache_entries = cache.entries;
    snapshot.cache_hits = cache.hits;
    snapshot.cache_misses = cache.misses;
    snapshot.cache_evictions = cache.evictions;
    snapshot.cache_made_ahead = cache.made_ahead;
  }
  if (const IndexStore* const store = parts_.datasets->index_store.get(); store != nullptr) {
    const IndexStore::Counts folders = store->counts();
    snapshot.folders_listed = folders.listed;
    snapshot.folders_unchanged = folders.recalled;
  }
  snapshot.kept_bytes = parts_.host_quarantine->bytes();
  FillUsers(parts_, cache_budget, snapshot);
  return snapshot;
}

}  // namespace pinfeed
