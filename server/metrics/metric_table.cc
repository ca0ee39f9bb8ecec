// SPDX-License-Identifier: Apache-2.0
// Names follow prometheus.io/docs/practices/naming: one prefix, base units, _total on counters. No label
// holds what a client is free to say: client names and paths are not in here.
#include "server/metrics/metric_table.h"

#include <array>

namespace pinfeed {
namespace {

constexpr MetricKind kG = MetricKind::kGauge;
constexpr MetricKind kC = MetricKind::kCounter;
constexpr MetricKind kH = MetricKind::kHistogram;

constexpr auto kTable = std::to_array<MetricDefinition>({
    {Metric::kBuildInfo, "pinfeed_build_info", kG, "", "version, backend",
     "Always 1; what runs is in the labels."},
    {Metric::kReady, "pinfeed_ready", kG, "", "", "1 while clients can open feeds."},
    {Metric::kDraining, "pinfeed_draining", kG, "", "", "1 while the daemon waits for its clients to leave."},
    {Metric::kDrainingSeconds, "pinfeed_draining_seconds", kG, "seconds", "",
     "Time since the drain began; 0: it did not."},
    {Metric::kReloadSuccessful, "pinfeed_config_last_reload_successful", kG, "", "",
     "1 when the last attempt to load the configuration succeeded."},
    {Metric::kReloadTimestamp, "pinfeed_config_last_reload_success_timestamp_seconds", kG, "seconds", "",
     "Unix time at which the configuration in force was loaded."},
    {Metric::kAdminCertificateExpiry, "pinfeed_admin_certificate_expiry_timestamp_seconds", kG, "seconds", "",
     "Unix time at which the admin endpoint's certificate expires; absent without the endpoint."},
    {Metric::kWorkers, "pinfeed_workers", kG, "", "", "Threads that load samples."},
    {Metric::kWorkersBusy, "pinfeed_workers_busy", kG, "", "", "Threads that load samples right now."},
    {Metric::kWorkerChunks, "pinfeed_worker_chunks_total", kC, "", "",
     "Portions of a batch that workers and readers have finished: it stands still when they hang."},
    {Metric::kWorkerChunkAge, "pinfeed_worker_chunk_age_seconds", kG, "seconds", "",
     "Age of the portion that a worker or reader has been at longest; 0: all are idle."},
    {Metric::kSampleDuration, "pinfeed_sample_duration_seconds", kH, "seconds", "stage",
     "Worker time of a sample: read (waiting for the source) or decode (decoding and transforming an "
     "image)."},
    {Metric::kBatchFill, "pinfeed_batch_fill_duration_seconds", kH, "seconds", "",
     "Time from planning a batch until its last sample was in its slot."},
    {Metric::kBatchLent, "pinfeed_batch_lent_duration_seconds", kH, "seconds", "",
     "Time from publishing a batch until the daemon saw the last release of it."},
    {Metric::kBatches, "pinfeed_batches_total", kC, "", "", "Batches published; a shared one counts once."},
    {Metric::kSamples, "pinfeed_samples_total", kC, "", "", "Samples in published batches."},
    {Metric::kBatchBytes, "pinfeed_batch_bytes_total", kC, "bytes", "", "Bytes of published batches."},
    {Metric::kBadSamples, "pinfeed_bad_samples_total", kC, "", "", "Samples that could not be used."},
    {Metric::kStall, "pinfeed_stall_seconds_total", kC, "seconds", "cause",
     "Waiting, over all feeds: of the trainers for read, decode, workers or copy; of the daemon for its "
     "consumer, the "
     "trainers."},
    {Metric::kPoolCapacity, "pinfeed_pool_capacity_bytes", kG, "bytes", "",
     "Host memory that batches may take."},
    {Metric::kPoolUsed, "pinfeed_pool_used_bytes", kG, "bytes", "", "Host memory that batches take."},
    {Metric::kPoolKept, "pinfeed_pool_kept_bytes", kG, "bytes", "",
     "Of the host memory that batches take: that of feeds that ended, which a process still has mapped."},
    {Metric::kArenas, "pinfeed_arenas", kG, "", "",
     "Arenas: the slots of a feed, with what they take of the pool."},
    {Metric::kFeeds, "pinfeed_feeds", kG, "", "state", "Feeds by state."},
    {Metric::kFeedsOpened, "pinfeed_feeds_opened_total", kC, "", "", "Feeds opened."},
    {Metric::kFeedFailures, "pinfeed_feed_failures_total", kC, "", "code",
     "Feeds that failed, by the code of their error."},
    {Metric::kSessions, "pinfeed_sessions", kG, "", "state", "Sessions by state."},
    {Metric::kSessionsLimit, "pinfeed_sessions_limit", kG, "", "",
     "Sessions that there can be at one time (max_sessions)."},
    {Metric::kSessionsOpened, "pinfeed_sessions_opened_total", kC, "", "", "Sessions opened."},
    {Metric::kSessionsClosed, "pinfeed_sessions_closed_total", kC, "", "",
     "Sessions that ended, however they did."},
    {Metric::kRefusals, "pinfeed_refusals_total", kC, "", "reason",
     "Connections, requests and frames turned away."},
    {Metric::kRefusedRequests, "pinfeed_refused_requests_total", kC, "", "code",
     "Requests for a feed that were answered with an error, by its code."},
    {Metric::kFallbacks, "pinfeed_fallbacks_total", kC, "", "backend",
     "Sessions that got a lesser backend than the best of their GPU, by what they got."},
    {Metric::kIgnoredReleases, "pinfeed_ignored_releases_total", kC, "", "",
     "Release words that named another generation than the slot's."},
    {Metric::kFeedInfo, "pinfeed_feed_info", kG, "", "feed, sharing, memory",
     "Always 1; what the feed is, is in the labels."},
    {Metric::kFeedSlots, "pinfeed_feed_slots", kG, "", "feed, state", "Slots of a feed by state."},
    {Metric::kFeedArenaBytes, "pinfeed_feed_arena_bytes", kG, "bytes", "feed", "Memory of a feed's slots."},
    {Metric::kFeedEpoch, "pinfeed_feed_epoch", kG, "", "feed", "Epoch of the batch a feed published last."},
    {Metric::kFeedBatches, "pinfeed_feed_batches_total", kC, "", "feed", "Batches that a feed published."},
    {Metric::kFeedSamples, "pinfeed_feed_samples_total", kC, "", "feed",
     "Samples in the batches that a feed published."},
    {Metric::kFeedBadSamples, "pinfeed_feed_bad_samples_total", kC, "", "feed",
     "Samples of a feed that could not be used."},
    {Metric::kFeedRunning, "pinfeed_feed_running_seconds_total", kC, "seconds", "feed",
     "Time that a feed has run: what its stalls are a share of."},
    {Metric::kFeedStall, "pinfeed_feed_stall_seconds_total", kC, "seconds", "feed, cause",
     "Waiting in a feed: the mean of its trainers' for read, decode, workers or copy, or its own for its "
     "consumer."},
    {Metric::kSessionInfo, "pinfeed_session_info", kG, "", "session, feed, pid, uid, state",
     "Always 1; whose the session is, is in the labels."},
    {Metric::kSessionBatches, "pinfeed_session_batches_total", kC, "", "session, feed",
     "Batches published to a session."},
    {Metric::kSessionSlots, "pinfeed_session_slots", kG, "", "session, feed, state",
     "Batches that a session has: ready for it, or held by its trainer (as it says)."},
    {Metric::kSessionLeaseAge, "pinfeed_session_lease_age_seconds", kG, "seconds", "session, feed",
     "Age of the batch that a session has had longest; 0: it has none."},
    {Metric::kSessionStall, "pinfeed_session_stall_seconds_total", kC, "seconds", "session, feed, cause",
     "Waiting of a session's trainer for read, decode, workers or copy, as it reports it within the time "
     "there was; "
     "consumer: "
     "its feed had no free slot, and this session had some; group: the same, and it waited, as others had "
     "them all."},
    {Metric::kUserSessions, "pinfeed_user_sessions", kG, "", "uid", "Sessions of a user."},
    {Metric::kUserPool, "pinfeed_user_pool_bytes", kG, "bytes", "uid",
     "Host memory that the feeds of a user take, with what it keeps of feeds that ended."},
    {Metric::kUserPinned, "pinfeed_user_pinned_bytes", kG, "bytes", "uid",
     "Pinned memory that the feeds of a user take."},
    {Metric::kUserGpu, "pinfeed_user_gpu_bytes", kG, "bytes", "uid",
     "Memory of all GPUs together that the feeds of a user take, with what lingers."},
    {Metric::kUserSessionsLimit, "pinfeed_user_sessions_limit", kG, "", "",
     "Sessions that a user may have (user_sessions)."},
    {Metric::kUserPoolLimit, "pinfeed_user_pool_limit_bytes", kG, "bytes", "",
     "Host memory that a user may take (user_pool_bytes)."},
    {Metric::kUserPinnedLimit, "pinfeed_user_pinned_limit_bytes", kG, "bytes", "",
     "Pinned memory that a user may take (user_pinned_bytes); 0: there is none."},
    {Metric::kUserGpuLimit, "pinfeed_user_gpu_limit_bytes", kG, "bytes", "",
     "Memory of each GPU that a user may take (user_gpu_bytes); 0: there is none."},
    {Metric::kGpuArenaCapacity, "pinfeed_gpu_arena_capacity_bytes", kG, "bytes", "gpu",
     "Memory of a GPU that batches may take."},
    {Metric::kGpuArenaUsed, "pinfeed_gpu_arena_used_bytes", kG, "bytes", "gpu",
     "Memory of a GPU that batches take."},
    {Metric::kGpuLingering, "pinfeed_gpu_lingering_bytes", kG, "bytes", "gpu",
     "Of the memory that batches take: that of clients that ended without a farewell, until none of their "
     "work can be left."},
    {Metric::kGpuCopies, "pinfeed_gpu_copies_total", kC, "", "gpu", "Copies from the host to a GPU."},
    {Metric::kGpuCopiedBytes, "pinfeed_gpu_copied_bytes_total", kC, "bytes", "gpu",
     "Bytes copied to a GPU from the host."},
    {Metric::kGpuPeerCopiedBytes, "pinfeed_gpu_peer_copied_bytes_total", kC, "bytes", "gpu",
     "Bytes copied to a GPU from other GPUs, for broadcasts to several."},
    {Metric::kGpuCopySeconds, "pinfeed_gpu_copy_seconds_total", kC, "seconds", "gpu",
     "Time in which a GPU's copy stream had something to do."},
    {Metric::kGpuQueueSeconds, "pinfeed_gpu_queue_seconds_total", kC, "seconds", "gpu",
     "Time that filled batches waited for their copy to begin, all together."},
    {Metric::kGpuCopyDuration, "pinfeed_gpu_copy_duration_seconds", kH, "seconds", "gpu",
     "Time from giving a copy to the driver until it was seen complete."},
    {Metric::kGpuCopyErrors, "pinfeed_gpu_copy_errors_total", kC, "", "gpu",
     "Errors of a GPU's driver while copying; the first one ends the daemon."},
    {Metric::kGpuStalled, "pinfeed_gpu_stalled_seconds", kG, "seconds", "gpu",
     "Time for which no copy to a GPU has ended although there is one to make; 0: there is none."},
    {Metric::kProcessStart, "process_start_time_seconds", kG, "seconds", "",
     "Unix time at which the daemon started."},
    {Metric::kProcessCpu, "process_cpu_seconds_total", kC, "seconds", "",
     "Processor time of the daemon's threads."},
    {Metric::kProcessResident, "process_resident_memory_bytes", kG, "bytes", "",
     "Memory that the daemon has resident, shared batches included."},
    {Metric::kProcessOpenFds, "process_open_fds", kG, "", "", "File descriptors that the daemon has open."},
    {Metric::kProcessMaxFds, "process_max_fds", kG, "", "",
     "File descriptors that the daemon may have open."},
});

consteval bool InOrder() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<size_t>(kTable[i].id) != i) return false;
  }
  return true;
}
static_assert(InOrder(), "the table is in the order of its enumeration");

}  // namespace

std::span<const MetricDefinition> MetricTable() {
  return kTable;
}

std::string_view MetricKindName(MetricKind kind) {
  static constexpr std::array<std::string_view, 3> kNames = {"gauge", "counter", "histogram"};
  return kNames.at(static_cast<size_t>(kind));
}

std::vector<std::string> LabelNames(const MetricDefinition& definition) {
  std::vector<std::string> names;
  std::string_view rest = definition.labels;
  while (!rest.empty()) {
    const size_t comma = rest.find(", ");
    names.emplace_back(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 2);
  }
  return names;
}

}  // namespace pinfeed
