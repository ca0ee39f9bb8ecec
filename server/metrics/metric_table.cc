// SPDX-License-Identifier: Apache-2.0
// Names follow prometheus.io/docs/practices/naming: one prefix, base units, _total on counters. Labels never
// contain text that clients choose, such as client names and paths.
#include "server/metrics/metric_table.h"

#include <array>

namespace pinfeed {
namespace {

constexpr MetricKind kG = MetricKind::kGauge;
constexpr MetricKind kC = MetricKind::kCounter;
constexpr MetricKind kH = MetricKind::kHistogram;

constexpr auto kTable = std::to_array<MetricDefinition>({
    {Metric::kBuildInfo, "pinfeed_build_info", kG, "", "version, backend",
     "Always 1; the labels describe the daemon."},
    {Metric::kReady, "pinfeed_ready", kG, "", "", "1 while clients can open feeds."},
    {Metric::kDraining, "pinfeed_draining", kG, "", "",
     "1 while the daemon drains: it waits for its clients to leave."},
    {Metric::kDrainingSeconds, "pinfeed_draining_seconds", kG, "seconds", "",
     "Time since the drain began; 0: not draining."},
    {Metric::kReloadSuccessful, "pinfeed_config_last_reload_successful", kG, "", "",
     "1 when the last attempt to load the configuration succeeded."},
    {Metric::kReloadTimestamp, "pinfeed_config_last_reload_success_timestamp_seconds", kG, "seconds", "",
     "Unix time at which the configuration in force was loaded."},
    {Metric::kAdminCertificateExpiry, "pinfeed_admin_certificate_expiry_timestamp_seconds", kG, "seconds", "",
     "Unix time at which the admin endpoint's certificate expires; absent without the endpoint."},
    {Metric::kWorkers, "pinfeed_workers", kG, "", "", "Threads that load samples."},
    {Metric::kWorkersBusy, "pinfeed_workers_busy", kG, "", "", "Worker threads that are loading samples."},
    {Metric::kWorkerChunks, "pinfeed_worker_chunks_total", kC, "", "",
     "Chunks of batches that workers and readers have finished; it does not grow while all of them hang."},
    {Metric::kWorkerChunkAge, "pinfeed_worker_chunk_age_seconds", kG, "seconds", "",
     "Age of the oldest chunk in progress; 0: all workers and readers are idle."},
    {Metric::kSampleDuration, "pinfeed_sample_duration_seconds", kH, "seconds", "stage",
     "Worker time of a sample: read (waiting for the source) or decode (decoding and transforming an "
     "image)."},
    {Metric::kBatchFill, "pinfeed_batch_fill_duration_seconds", kH, "seconds", "",
     "Time from planning a batch until its slot was filled."},
    {Metric::kBatchLent, "pinfeed_batch_lent_duration_seconds", kH, "seconds", "",
     "Time from publishing a batch until the daemon saw its last release."},
    {Metric::kBatches, "pinfeed_batches_total", kC, "", "",
     "Batches published; a batch shared by a group counts once."},
    {Metric::kSamples, "pinfeed_samples_total", kC, "", "", "Samples in published batches."},
    {Metric::kBatchBytes, "pinfeed_batch_bytes_total", kC, "bytes", "", "Bytes of published batches."},
    {Metric::kBadSamples, "pinfeed_bad_samples_total", kC, "", "", "Samples that could not be used."},
    {Metric::kStall, "pinfeed_stall_seconds_total", kC, "seconds", "cause",
     "Waiting time, summed over all feeds: trainers waiting for read, decode, workers or copy; feeds "
     "waiting for their consumer, the trainers."},
    {Metric::kPoolCapacity, "pinfeed_pool_capacity_bytes", kG, "bytes", "",
     "Host memory available for batches."},
    {Metric::kPoolUsed, "pinfeed_pool_used_bytes", kG, "bytes", "", "Host memory used by batches."},
    {Metric::kPoolKept, "pinfeed_pool_kept_bytes", kG, "bytes", "",
     "Part of the used host memory that belongs to ended feeds and is still mapped by a process."},
    {Metric::kArenas, "pinfeed_arenas", kG, "", "", "Arenas, each with the slots of one feed."},
    {Metric::kFeeds, "pinfeed_feeds", kG, "", "state", "Feeds by state."},
    {Metric::kFeedsOpened, "pinfeed_feeds_opened_total", kC, "", "", "Feeds opened."},
    {Metric::kFeedFailures, "pinfeed_feed_failures_total", kC, "", "code",
     "Feeds that failed, by error code."},
    {Metric::kSessions, "pinfeed_sessions", kG, "", "state", "Sessions by state."},
    {Metric::kSessionsLimit, "pinfeed_sessions_limit", kG, "", "",
     "Maximum number of concurrent sessions (max_sessions)."},
    {Metric::kSessionsOpened, "pinfeed_sessions_opened_total", kC, "", "", "Sessions opened."},
    {Metric::kSessionsClosed, "pinfeed_sessions_closed_total", kC, "", "",
     "Sessions that ended for any reason."},
    {Metric::kRefusals, "pinfeed_refusals_total", kC, "", "reason",
     "Connections, requests and frames refused."},
    {Metric::kRefusedRequests, "pinfeed_refused_requests_total", kC, "", "code",
     "Requests for a feed that failed, by error code."},
    {Metric::kFallbacks, "pinfeed_fallbacks_total", kC, "", "backend",
     "Sessions that got a slower backend than the best one of their GPU, by the backend used."},
    {Metric::kIgnoredReleases, "pinfeed_ignored_releases_total", kC, "", "",
     "Release words with a generation other than the slot's."},
    {Metric::kFeedInfo, "pinfeed_feed_info", kG, "", "feed, sharing, memory",
     "Always 1; the labels describe the feed."},
    {Metric::kFeedSlots, "pinfeed_feed_slots", kG, "", "feed, state", "Slots of a feed by state."},
    {Metric::kFeedArenaBytes, "pinfeed_feed_arena_bytes", kG, "bytes", "feed", "Memory of a feed's slots."},
    {Metric::kFeedEpoch, "pinfeed_feed_epoch", kG, "", "feed",
     "Epoch of the batch that a feed published last."},
    {Metric::kFeedBatches, "pinfeed_feed_batches_total", kC, "", "feed", "Batches that a feed published."},
    {Metric::kFeedSamples, "pinfeed_feed_samples_total", kC, "", "feed",
     "Samples in the batches that a feed published."},
    {Metric::kFeedBadSamples, "pinfeed_feed_bad_samples_total", kC, "", "feed",
     "Samples of a feed that could not be used."},
    {Metric::kFeedRunning, "pinfeed_feed_running_seconds_total", kC, "seconds", "feed",
     "Time that a feed has run; divide its stall times by it."},
    {Metric::kFeedStall, "pinfeed_feed_stall_seconds_total", kC, "seconds", "feed, cause",
     "Waiting time in a feed: the mean over its trainers for read, decode, workers or copy; the feed's own "
     "for its consumer."},
    {Metric::kSessionInfo, "pinfeed_session_info", kG, "", "session, feed, pid, uid, state",
     "Always 1; the labels describe the session."},
    {Metric::kSessionBatches, "pinfeed_session_batches_total", kC, "", "session, feed",
     "Batches published to a session."},
    {Metric::kSessionSlots, "pinfeed_session_slots", kG, "", "session, feed, state",
     "Batches of a session: ready, or held by its trainer (as the client reports)."},
    {Metric::kSessionLeaseAge, "pinfeed_session_lease_age_seconds", kG, "seconds", "session, feed",
     "Age of the oldest batch of a session; 0: it has none."},
    {Metric::kSessionStall, "pinfeed_session_stall_seconds_total", kC, "seconds", "session, feed, cause",
     "Waiting time of a session's trainer for read, decode, workers or copy, as the client reports it, "
     "limited to the elapsed time; consumer: its feed had no free slot and this session held some; group: "
     "its feed had no free slot and other sessions held them all."},
    {Metric::kUserSessions, "pinfeed_user_sessions", kG, "", "uid", "Sessions of a user."},
    {Metric::kUserPool, "pinfeed_user_pool_bytes", kG, "bytes", "uid",
     "Host memory used by the feeds of a user, including ended feeds that are still mapped."},
    {Metric::kUserPinned, "pinfeed_user_pinned_bytes", kG, "bytes", "uid",
     "Pinned memory used by the feeds of a user."},
    {Metric::kUserGpu, "pinfeed_user_gpu_bytes", kG, "bytes", "uid",
     "GPU memory used by the feeds of a user on all GPUs, including quarantined memory."},
    {Metric::kUserSessionsLimit, "pinfeed_user_sessions_limit", kG, "", "",
     "Maximum number of sessions per user (user_sessions)."},
    {Metric::kUserPoolLimit, "pinfeed_user_pool_limit_bytes", kG, "bytes", "",
     "Maximum host memory per user (user_pool_bytes)."},
    {Metric::kUserPinnedLimit, "pinfeed_user_pinned_limit_bytes", kG, "bytes", "",
     "Maximum pinned memory per user (user_pinned_bytes); 0: there is no pinned memory."},
    {Metric::kUserGpuLimit, "pinfeed_user_gpu_limit_bytes", kG, "bytes", "",
     "Maximum memory per user on each GPU (user_gpu_bytes); 0: there is no GPU."},
    {Metric::kGpuArenaCapacity, "pinfeed_gpu_arena_capacity_bytes", kG, "bytes", "gpu",
     "GPU memory available for batches."},
    {Metric::kGpuArenaUsed, "pinfeed_gpu_arena_used_bytes", kG, "bytes", "gpu",
     "GPU memory used by batches."},
    {Metric::kGpuLingering, "pinfeed_gpu_lingering_bytes", kG, "bytes", "gpu",
     "Part of the used GPU memory that is quarantined: its clients ended without a bye, and their GPU work "
     "may still access it."},
    {Metric::kGpuCopies, "pinfeed_gpu_copies_total", kC, "", "gpu", "Copies from the host to a GPU."},
    {Metric::kGpuCopiedBytes, "pinfeed_gpu_copied_bytes_total", kC, "bytes", "gpu",
     "Bytes copied to a GPU from the host."},
    {Metric::kGpuPeerCopiedBytes, "pinfeed_gpu_peer_copied_bytes_total", kC, "bytes", "gpu",
     "Bytes copied to a GPU from other GPUs, for broadcasts to several."},
    {Metric::kGpuCopySeconds, "pinfeed_gpu_copy_seconds_total", kC, "seconds", "gpu",
     "Time in which a GPU's copy stream was busy."},
    {Metric::kGpuQueueSeconds, "pinfeed_gpu_queue_seconds_total", kC, "seconds", "gpu",
     "Total time that filled batches waited for their copy to begin."},
    {Metric::kGpuCopyDuration, "pinfeed_gpu_copy_duration_seconds", kH, "seconds", "gpu",
     "Time from submitting a copy to the driver until its completion was detected."},
    {Metric::kGpuCopyErrors, "pinfeed_gpu_copy_errors_total", kC, "", "gpu",
     "Driver errors while copying to a GPU; the first one stops the daemon."},
    {Metric::kGpuStalled, "pinfeed_gpu_stalled_seconds", kG, "seconds", "gpu",
     "Time since a copy to a GPU last completed while copies are pending; 0: none is pending."},
    {Metric::kProcessStart, "process_start_time_seconds", kG, "seconds", "",
     "Unix time at which the daemon started."},
    {Metric::kProcessCpu, "process_cpu_seconds_total", kC, "seconds", "",
     "Processor time of the daemon's threads."},
    {Metric::kProcessResident, "process_resident_memory_bytes", kG, "bytes", "",
     "Resident memory of the daemon, including shared batches."},
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
static_assert(InOrder(), "the table follows the order of the enumeration");

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
