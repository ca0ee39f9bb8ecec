// SPDX-License-Identifier: Apache-2.0
// The daemon's state at one moment, as plain values. In: the parts of the daemon. Out: GetStatus and the
// metrics, which report the same figures.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/feed/feed.h"
#include "server/loading/progress_check.h"
#include "server/loading/worker_pool.h"
#include "server/memory/device_arenas.h"
#include "server/net/refusals.h"

namespace pinfeed {

// Both report times in seconds.
inline double Seconds(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

struct SessionSnapshot {
  uint64_t id = 0;
  int32_t pid = 0;
  uint32_t uid = 0;
  std::string client_name;  // escaped by EscapeUnprintable
  std::string state;        // "pending", "attached", "orphaned", "evicted", "left"
  std::string backend;      // "host", "vmm-fd", "cuda-ipc"
  std::string fallback;     // why a better requested backend is not used
  uint64_t batches_published = 0;
  uint64_t batches_taken = 0;       // reported by the client, at most batches_published
  uint64_t batches_copied = 0;      // reported by the client, at most batches_taken
  double wait_seconds = 0;          // reported by the client, at most the session's age
  uint32_t slots_lent = 0;          // published, not yet released
  uint32_t slots_held = 0;          // part of slots_lent that the client reports as taken; the rest is ready
  double oldest_lease_seconds = 0;  // see ParticipantSnapshot; 0: it has no batch
  StallTimes stall_ns{};            // while attached
  std::optional<StallShares> recent;  // recent shares of stall_ns, once known
  uint64_t ignored_releases = 0;
};

struct FeedReport {
  FeedSnapshot feed;
  std::vector<SessionSnapshot> sessions;
};

// Sums over all feeds since the start, including ended ones. They never decrease.
struct FeedTotals {
  uint64_t feeds = 0;
  uint64_t batches = 0;
  uint64_t samples = 0;
  uint64_t bytes = 0;
  uint64_t bad_samples = 0;
  uint64_t ignored_releases = 0;
  StallTimes stall_ns{};
  DurationCounts filling;
  DurationCounts lent;
  CodeCounts failures{};  // failed feeds by code
};

// Sessions since the start that requested the best backend of a GPU and got a lesser one.
struct FallbackCounts {
  uint64_t cuda_ipc = 0;
  uint64_t host = 0;
};

// What one user uses, and the limits per user.
struct UserSnapshot {
  uint32_t uid = 0;
  uint32_t sessions = 0;
  uint64_t pool_bytes = 0;    // host memory, including ended feeds that are still mapped
  uint64_t pinned_bytes = 0;  // staging memory of feeds on GPUs
  uint64_t gpu_bytes = 0;     // on all GPUs, including quarantined memory
  uint64_t cache_bytes = 0;   // in the decoded cache
};
struct UserLimits {
  uint32_t sessions = 0;
  uint64_t pool_bytes = 0;
  uint64_t pinned_bytes = 0;
  uint64_t gpu_bytes = 0;  // per GPU; the lowest limit of all GPUs
  uint64_t cache_bytes = 0;
};

struct DaemonSnapshot {
  std::string version;
  uint64_t server_epoch = 0;
  double uptime_seconds = 0;
  bool ready = false;  // clients can connect
  bool draining = false;
  double draining_seconds = 0;  // since the drain began
  uint32_t workers = 0;
  uint32_t workers_busy = 0;
  uint64_t worker_chunks = 0;
  double worker_chunk_age_seconds = 0;  // oldest chunk in progress; 0: all are idle
  std::vector<HungThread> hung;         // threads that hang while the daemon is ready
  WorkerPool::Durations sample_durations;
  uint64_t pool_capacity_bytes = 0;
  uint64_t pool_used_bytes = 0;
  uint32_t open_fds = 0;
  uint32_t max_fds = 0;
  uint64_t resident_bytes = 0;
  double cpu_seconds = 0;
  double started_unix_seconds = 0;
  bool config_good = true;                                     // whether the last load succeeded
  double config_unix_seconds = 0;                              // when the current configuration was loaded
  std::optional<double> admin_certificate_until_unix_seconds;  // empty: no admin endpoint
  std::vector<FeedReport> feeds;
  FeedTotals totals;
  uint64_t sessions_opened = 0;
  uint64_t sessions_closed = 0;
  uint32_t max_sessions = 0;
  RefusalCounts refusals{};
  FallbackCounts fallbacks;
  CodeCounts refused_requests{};  // the refused requests, by code
  std::string backend;
  std::vector<GpuSnapshot> gpus;
  std::vector<UserSnapshot> users;  // users with any memory or session, by uid
  UserLimits user_limits;
  uint64_t cache_capacity_bytes = 0;  // of the decoded cache; 0: there is none
  uint64_t cache_used_bytes = 0;
  uint64_t cache_entries = 0;
  uint64_t cache_hits = 0;
  uint64_t cache_misses = 0;
  uint64_t cache_evictions = 0;
  uint64_t cache_made_ahead = 0;
  uint64_t folders_listed = 0;  // when datasets were opened, see IndexStore::Counts
  uint64_t folders_unchanged = 0;
  uint64_t kept_bytes = 0;  // part of pool_used_bytes: ended feeds that are still mapped
};

using SnapshotFunction = std::function<DaemonSnapshot()>;

// The number of open descriptors, and the resident memory in bytes; 0 where /proc is unavailable.
uint32_t CountOpenFds();
uint64_t ResidentBytes();
// The processor time of all threads.
double CpuSeconds();

}  // namespace pinfeed
