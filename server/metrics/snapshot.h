// SPDX-License-Identifier: Apache-2.0
// What the daemon is doing at one moment, as plain values. In: the parts that know. Out: GetStatus and the
// metrics, which show the same figures.
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

struct SessionSnapshot {
  uint64_t id = 0;
  int32_t pid = 0;
  uint32_t uid = 0;
  std::string client_name;  // by EscapeUnprintable
  std::string state;        // "pending", "attached", "orphaned", "evicted", "left"
  std::string backend;      // "host", "vmm-fd", "cuda-ipc"
  std::string fallback;     // why it is no better one, if that was asked for
  uint64_t batches_published = 0;
  uint64_t batches_taken = 0;         // as the client says, held below batches_published
  uint64_t batches_copied = 0;        // as the client says, held below batches_taken
  double wait_seconds = 0;            // as the client says, held below the session's age
  uint32_t slots_lent = 0;            // published and not released
  uint32_t slots_held = 0;            // of these, the ones it took, as it says; the others are ready for it
  double oldest_lease_seconds = 0;    // age of the batch it has longest; 0: it has none
  StallTimes stall_ns{};              // of an attached one
  std::optional<StallShares> recent;  // of stall_ns, once known
  uint64_t ignored_releases = 0;
};

struct FeedReport {
  FeedSnapshot feed;
  uint32_t slots = 0;
  std::vector<SessionSnapshot> sessions;
};

// Sums over all feeds since the start, ended ones included: they never go down.
struct FeedTotals {
  uint64_t feeds = 0;
  uint64_t batches = 0;
  uint64_t samples = 0;
  uint64_t bytes = 0;
  uint64_t bad_samples = 0;
  uint64_t ignored_releases = 0;
  uint64_t read_ns = 0;
  uint64_t decode_ns = 0;
  uint64_t starved_ns = 0;
  uint64_t full_ns = 0;
  StallTimes stall_ns{};
  DurationCounts filling;
  DurationCounts lent;
  CodeCounts failures{};  // feeds that failed, by code
};

// Sessions that asked for the best backend of a GPU and got a lesser one, since the start.
struct FallbackCounts {
  uint64_t cuda_ipc = 0;
  uint64_t host = 0;
};

// What one user has, and may have.
struct UserSnapshot {
  uint32_t uid = 0;
  uint32_t sessions = 0;
  uint64_t pool_bytes = 0;    // host memory, with what it keeps of feeds that ended
  uint64_t pinned_bytes = 0;  // staging of its feeds on GPUs
  uint64_t gpu_bytes = 0;     // on all GPUs together, with what lingers
};
struct UserLimits {
  uint32_t sessions = 0;
  uint64_t pool_bytes = 0;
  uint64_t pinned_bytes = 0;
  uint64_t gpu_bytes = 0;  // of each GPU; of several the smallest
};

struct DaemonSnapshot {
  uint64_t server_epoch = 0;
  double uptime_seconds = 0;
  bool ready = false;  // clients can connect
  bool draining = false;
  double draining_seconds = 0;  // since the drain began
  uint32_t workers = 0;
  uint32_t workers_busy = 0;
  uint64_t worker_chunks = 0;
  double worker_chunk_age_seconds =
      0;                         // of the one that a worker or reader has been at longest; 0: all are idle
  std::vector<HungThread> hung;  // though the daemon is ready
  WorkerPool::Durations sample_durations;
  uint64_t pool_capacity_bytes = 0;
  uint64_t pool_used_bytes = 0;
  uint32_t open_fds = 0;
  uint32_t max_fds = 0;
  uint64_t resident_bytes = 0;
  double cpu_seconds = 0;
  double started_unix_seconds = 0;
  bool config_good = true;                                     // the last attempt to load it
  double config_unix_seconds = 0;                              // when the one that is in force was loaded
  std::optional<double> admin_certificate_until_unix_seconds;  // nothing: no admin endpoint
  std::vector<FeedReport> feeds;
  FeedTotals totals;
  uint64_t sessions_opened = 0;
  uint64_t sessions_closed = 0;
  uint32_t max_sessions = 0;
  RefusalCounts refusals{};
  FallbackCounts fallbacks;
  CodeCounts refused_requests{};  // of these, the requests by code
  std::string backend;
  std::vector<GpuSnapshot> gpus;
  std::vector<UserSnapshot> users;  // that have something, by uid
  UserLimits user_limits;
  uint64_t kept_bytes = 0;  // of pool_used_bytes: of feeds that ended, still mapped by a process
};

using SnapshotFunction = std::function<DaemonSnapshot()>;

// Descriptors this process has open, and bytes of memory it has resident; 0 where /proc does not tell.
uint32_t CountOpenFds();
uint64_t ResidentBytes();
// The limit on descriptors; the processor time of all threads so far.
uint32_t MaxFds();
double CpuSeconds();

}  // namespace pinfeed
