// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/metrics.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <tuple>
#include <utility>

#include "common/base/status.h"
#include "common/spec/feed_spec.h"
#include "server/metrics/metric_table.h"

namespace pinfeed {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Purpose: builds the metric families of the table. Threads: one. Invariant: labels match the table.
class Page {
 public:
  Page() {
    static constexpr std::array<MetricType, 3> kTypes = {MetricType::Gauge, MetricType::Counter,
                                                         MetricType::Histogram};
    for (const MetricDefinition& metric : MetricTable()) {
      families_.push_back({std::string(metric.name),
                           std::string(metric.help),
                           kTypes.at(static_cast<size_t>(metric.kind)),
                           {}});
    }
  }
  template <typename Number>
  void Add(Metric metric, Number value, const std::vector<std::string>& labels = {}) {
    ClientMetric& series = NewSeries(metric, labels);
    if (MetricTable()[static_cast<size_t>(metric)].kind == MetricKind::kCounter) {
      series.counter.value = static_cast<double>(value);
    } else {
      series.gauge.value = static_cast<double>(value);
    }
  }
  void AddHistogram(Metric metric, const DurationCounts& durations,
                    const std::vector<std::string>& labels = {}) {
    ClientMetric& series = NewSeries(metric, labels);
    uint64_t count = 0;
    for (size_t i = 0; i < durations.counts.size(); ++i) {
      count += durations.counts[i];
      const double bound = i < DurationCounts::kBounds ? Seconds(DurationCounts::BoundNs(i))
                                                       : std::numeric_limits<double>::infinity();
      series.histogram.bucket.push_back({count, bound});
    }
    series.histogram.sample_count = count;
    series.histogram.sample_sum = Seconds(durations.sum_ns);
  }
  // Returns the families, without those that have no series.
  std::vector<MetricFamily> Take() && {
    std::erase_if(families_, [](const MetricFamily& family) { return family.metric.empty(); });
    return std::move(families_);
  }

 private:
  ClientMetric& NewSeries(Metric metric, const std::vector<std::string>& labels) {
    const std::vector<std::string> names = LabelNames(MetricTable()[static_cast<size_t>(metric)]);
    PF_CHECK(names.size() == labels.size(), "a series has the labels that the table names");
    ClientMetric& series = families_[static_cast<size_t>(metric)].metric.emplace_back();
    for (size_t i = 0; i < names.size(); ++i) series.label.push_back({names[i], labels[i]});
    return series;
  }
  std::vector<MetricFamily> families_;  // one per row of the table
};

void AddCodes(Metric metric, const CodeCounts& counts, Page& page) {
  for (size_t code = 1; code < counts.size(); ++code)
    page.Add(metric, counts[code], {std::string(CodeName(static_cast<Code>(code)))});
}

void AddDaemon(const DaemonSnapshot& snapshot, const std::string& version, Page& page) {
  page.Add(Metric::kBuildInfo, 1, {version, snapshot.gpus.empty() ? "host" : "cuda"});
  page.Add(Metric::kReady, snapshot.ready && !snapshot.draining ? 1 : 0);
  page.Add(Metric::kDraining, snapshot.draining ? 1 : 0);
  page.Add(Metric::kDrainingSeconds, snapshot.draining_seconds);
  page.Add(Metric::kReloadSuccessful, snapshot.config_good ? 1 : 0);
  page.Add(Metric::kReloadTimestamp, snapshot.config_unix_seconds);
  if (snapshot.admin_certificate_until_unix_seconds)
    page.Add(Metric::kAdminCertificateExpiry, *snapshot.admin_certificate_until_unix_seconds);
  page.Add(Metric::kWorkers, snapshot.workers);
  page.Add(Metric::kWorkersBusy, snapshot.workers_busy);
  page.Add(Metric::kWorkerChunks, snapshot.worker_chunks);
  page.Add(Metric::kWorkerChunkAge, snapshot.worker_chunk_age_seconds);
  page.Add(Metric::kPoolCapacity, snapshot.pool_capacity_bytes);
  page.Add(Metric::kPoolUsed, snapshot.pool_used_bytes);
  page.Add(Metric::kPoolKept, snapshot.kept_bytes);
  page.Add(Metric::kSessionsLimit, snapshot.max_sessions);
  page.Add(Metric::kProcessStart, snapshot.started_unix_seconds);
  page.Add(Metric::kProcessCpu, snapshot.cpu_seconds);
  page.Add(Metric::kProcessResident, snapshot.resident_bytes);
  page.Add(Metric::kProcessOpenFds, snapshot.open_fds);
  page.Add(Metric::kProcessMaxFds, snapshot.max_fds);
}

void AddTotals(const DaemonSnapshot& snapshot, Page& page) {
  const FeedTotals& totals = snapshot.totals;
  page.AddHistogram(Metric::kSampleDuration, snapshot.sample_durations.read, {"read"});
  page.AddHistogram(Metric::kSampleDuration, snapshot.sample_durations.decode, {"decode"});
  page.AddHistogram(Metric::kBatchFill, totals.filling);
  page.AddHistogram(Metric::kBatchLent, totals.lent);
  page.Add(Metric::kBatches, totals.batches);
  page.Add(Metric::kSamples, totals.samples);
  page.Add(Metric::kBatchBytes, totals.bytes);
  page.Add(Metric::kBadSamples, totals.bad_samples);
  for (size_t i = 0; i < kStallCauses; ++i)
    page.Add(Metric::kStall, Seconds(totals.stall_ns[i]), {std::string(kStallCauseNames[i])});
  page.Add(Metric::kFeedsOpened, totals.feeds);
  AddCodes(Metric::kFeedFailures, totals.failures, page);
  page.Add(Metric::kSessionsOpened, snapshot.sessions_opened);
  page.Add(Metric::kSessionsClosed, snapshot.sessions_closed);
  for (size_t i = 0; i < snapshot.refusals.size(); ++i)
    page.Add(Metric::kRefusals, snapshot.refusals[i], {std::string(RefusalName(static_cast<Refusal>(i)))});
  AddCodes(Metric::kRefusedRequests, snapshot.refused_requests, page);
  page.Add(Metric::kFallbacks, snapshot.fallbacks.cuda_ipc, {"cuda-ipc"});
  page.Add(Metric::kFallbacks, snapshot.fallbacks.host, {"host"});
  page.Add(Metric::kIgnoredReleases, totals.ignored_releases);
}

void AddStates(const DaemonSnapshot& snapshot, Page& page) {
  page.Add(Metric::kArenas, snapshot.feeds.size());
  for (const char* state : {"waiting", "running", "draining", "ended", "failed"}) {
    uint64_t count = 0;
    for (const FeedReport& report : snapshot.feeds) count += report.feed.state == state ? 1 : 0;
    page.Add(Metric::kFeeds, count, {state});
  }
  for (const char* state : {"pending", "attached", "orphaned", "evicted", "left"}) {
    uint64_t count = 0;
    for (const FeedReport& report : snapshot.feeds) {
      for (const SessionSnapshot& session : report.sessions) count += session.state == state ? 1 : 0;
    }
    page.Add(Metric::kSessions, count, {state});
  }
}

const char* SharingLabel(Sharing sharing) {
  if (sharing == Sharing::kExclusive) return "exclusive";
  return sharing == Sharing::kBroadcast ? "broadcast" : "queue";
}

void AddFeed(const FeedReport& report, Page& page) {
  const FeedSnapshot& feed = report.feed;
  const std::string id = std::to_string(feed.id);
  page.Add(Metric::kFeedInfo, 1, {id, SharingLabel(feed.sharing), feed.on_device ? "gpu" : "host"});
  page.Add(Metric::kFeedSlots, feed.slots_free, {id, "free"});
  page.Add(Metric::kFeedSlots, feed.slots_filling, {id, "filling"});
  page.Add(Metric::kFeedSlots, feed.slots_ready, {id, "ready"});
  page.Add(Metric::kFeedSlots, feed.slots_lent, {id, "lent"});
  page.Add(Metric::kFeedArenaBytes, feed.arena_bytes, {id});
  page.Add(Metric::kFeedEpoch, feed.epoch, {id});
  page.Add(Metric::kFeedBatches, feed.batches, {id});
  page.Add(Metric::kFeedSamples, feed.samples, {id});
  page.Add(Metric::kFeedBadSamples, feed.bad_samples, {id});
  page.Add(Metric::kFeedRunning, Seconds(feed.running_ns), {id});
  for (size_t i = 0; i < kStallCauses; ++i)
    page.Add(Metric::kFeedStall, Seconds(feed.stall_ns[i]), {id, std::string(kStallCauseNames[i])});
}

void AddSession(const SessionSnapshot& session, const std::string& feed, Page& page) {
  const std::string id = std::to_string(session.id);
  page.Add(Metric::kSessionInfo, 1,
           {id, feed, std::to_string(session.pid), std::to_string(session.uid), session.state});
  page.Add(Metric::kSessionBatches, session.batches_published, {id, feed});
  if (session.state != "attached") return;  // the rest exists only while the session is attached
  page.Add(Metric::kSessionSlots, session.slots_lent - session.slots_held, {id, feed, "ready"});
  page.Add(Metric::kSessionSlots, session.slots_held, {id, feed, "held"});
  page.Add(Metric::kSessionLeaseAge, session.oldest_lease_seconds, {id, feed});
  for (size_t i = 0; i < kStallCauses; ++i)
    page.Add(Metric::kSessionStall, Seconds(session.stall_ns[i]),
             {id, feed, std::string(kStallCauseNames[i])});
}

// Adds the users with the most memory, and the sum of the others. Users come and go, and every label value
// would stay in the database.
void AddUsers(const DaemonSnapshot& snapshot, Page& page) {
  std::vector<UserSnapshot> users = snapshot.users;
  std::stable_sort(users.begin(), users.end(), [](const UserSnapshot& a, const UserSnapshot& b) {
    return std::tuple(a.pool_bytes + a.gpu_bytes, a.sessions) >
           std::tuple(b.pool_bytes + b.gpu_bytes, b.sessions);
  });
  const auto add = [&](const UserSnapshot& user, const std::string& uid) {
    page.Add(Metric::kUserSessions, user.sessions, {uid});
    page.Add(Metric::kUserPool, user.pool_bytes, {uid});
    page.Add(Metric::kUserPinned, user.pinned_bytes, {uid});
    page.Add(Metric::kUserGpu, user.gpu_bytes, {uid});
  };
  UserSnapshot others;
  for (size_t i = 0; i < users.size(); ++i) {
    if (i < kMaxUsersNamed) {
      add(users[i], std::to_string(users[i].uid));
      continue;
    }
    others.sessions += users[i].sessions;
    others.pool_bytes += users[i].pool_bytes;
    others.pinned_bytes += users[i].pinned_bytes;
    others.gpu_bytes += users[i].gpu_bytes;
  }
  if (users.size() > kMaxUsersNamed) add(others, "others");
  page.Add(Metric::kUserSessionsLimit, snapshot.user_limits.sessions);
  page.Add(Metric::kUserPoolLimit, snapshot.user_limits.pool_bytes);
  page.Add(Metric::kUserPinnedLimit, snapshot.user_limits.pinned_bytes);
  page.Add(Metric::kUserGpuLimit, snapshot.user_limits.gpu_bytes);
}

void AddGpu(const GpuSnapshot& gpu, Page& page) {
  page.Add(Metric::kGpuArenaCapacity, gpu.arena_capacity_bytes, {gpu.uuid});
  page.Add(Metric::kGpuArenaUsed, gpu.arena_used_bytes, {gpu.uuid});
  page.Add(Metric::kGpuLingering, gpu.lingering_bytes(), {gpu.uuid});
  page.Add(Metric::kGpuCopies, gpu.copies, {gpu.uuid});
  page.Add(Metric::kGpuCopiedBytes, gpu.copied_bytes, {gpu.uuid});
  page.Add(Metric::kGpuPeerCopiedBytes, gpu.peer_bytes, {gpu.uuid});
  page.Add(Metric::kGpuCopySeconds, Seconds(gpu.copy_ns), {gpu.uuid});
  page.Add(Metric::kGpuQueueSeconds, Seconds(gpu.queue_ns), {gpu.uuid});
  page.AddHistogram(Metric::kGpuCopyDuration, gpu.copy_durations, {gpu.uuid});
  page.Add(Metric::kGpuCopyErrors, gpu.copy_errors, {gpu.uuid});
  page.Add(Metric::kGpuStalled, std::chrono::duration<double>(gpu.stalled).count(), {gpu.uuid});
}

}  // namespace

std::vector<MetricFamily> MetricsOf(const DaemonSnapshot& snapshot, const std::string& version) {
  Page page;
  AddDaemon(snapshot, version, page);
  AddTotals(snapshot, page);
  AddStates(snapshot, page);
  for (const FeedReport& report : snapshot.feeds) {
    AddFeed(report, page);
    for (const SessionSnapshot& session : report.sessions)
      AddSession(session, std::to_string(report.feed.id), page);
  }
  AddUsers(snapshot, page);
  for (const GpuSnapshot& gpu : snapshot.gpus) AddGpu(gpu, page);
  return std::move(page).Take();
}

std::vector<MetricFamily> MetricsCollector::Collect() const {
  return MetricsOf(snapshot_(), version_);
}

}  // namespace pinfeed
