// SPDX-License-Identifier: Apache-2.0
// Names follow prometheus.io/docs/practices/naming: one prefix, base units, _total on counters, no label
// whose values have no bound. Feeds and sessions are bounded by max_sessions and vanish when they end.
#include "server/telemetry/metrics.h"

#include <utility>

#include "common/feed_spec.h"

namespace pinfeed {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

double Seconds(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

// Purpose: collects families in order. Threads: one.
class Page {
 public:
  void Family(const char* name, const char* help, MetricType type) {
    families_.push_back({name, help, type, {}});
  }
  void Sample(double value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    if (families_.back().type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    families_.back().metric.push_back(std::move(metric));
  }
  void Gauge(const char* name, const char* help, double value) {
    Family(name, help, MetricType::Gauge);
    Sample(value);
  }
  void Counter(const char* name, const char* help, double value) {
    Family(name, help, MetricType::Counter);
    Sample(value);
  }
  std::vector<MetricFamily> Take() && { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

void AddHost(const DaemonSnapshot& snapshot, const std::string& version, Page& page) {
  page.Family("pinfeed_build_info", "Always 1; the version is a label.", MetricType::Gauge);
  page.Sample(1, {{"version", version}});
  page.Gauge("pinfeed_uptime_seconds", "Seconds since the daemon started.", snapshot.uptime_seconds);
  page.Gauge("pinfeed_ready", "1 while clients can open feeds.",
             snapshot.ready && !snapshot.draining ? 1 : 0);
  page.Gauge("pinfeed_draining", "1 while the daemon waits for its clients to leave.",
             snapshot.draining ? 1 : 0);
  page.Gauge("pinfeed_pool_capacity_bytes", "Host memory that batches may take.",
             static_cast<double>(snapshot.pool_capacity_bytes));
  page.Gauge("pinfeed_pool_used_bytes", "Host memory that batches take.",
             static_cast<double>(snapshot.pool_used_bytes));
  page.Gauge("pinfeed_workers", "Threads that load samples.", snapshot.workers);
  page.Gauge("pinfeed_workers_busy", "Threads that load a sample right now.", snapshot.workers_busy);
  page.Gauge("pinfeed_open_fds", "File descriptors the daemon has open.", snapshot.open_fds);
  page.Gauge("pinfeed_resident_bytes", "Memory the daemon has resident, shared batches included.",
             static_cast<double>(snapshot.resident_bytes));
}

void AddTotals(const DaemonSnapshot& snapshot, Page& page) {
  const FeedTotals& totals = snapshot.totals;
  page.Counter("pinfeed_feeds_opened_total", "Feeds opened.", static_cast<double>(totals.feeds));
  page.Counter("pinfeed_sessions_opened_total", "Sessions opened.",
               static_cast<double>(snapshot.sessions_opened));
  page.Counter("pinfeed_sessions_closed_total", "Sessions that ended, however they did.",
               static_cast<double>(snapshot.sessions_closed));
  page.Counter("pinfeed_batches_total", "Batches published; a shared one counts once.",
               static_cast<double>(totals.batches));
  page.Counter("pinfeed_samples_total", "Samples in published batches.", static_cast<double>(totals.samples));
  page.Counter("pinfeed_batch_bytes_total", "Bytes of published batches.", static_cast<double>(totals.bytes));
  page.Counter("pinfeed_bad_samples_total", "Samples that could not be used.",
               static_cast<double>(totals.bad_samples));
  page.Counter("pinfeed_ignored_releases_total",
               "Release words that named another generation than the slot's.",
               static_cast<double>(totals.ignored_releases));
  page.Family("pinfeed_worker_seconds_total",
              "Worker time by stage: waiting for the source, or decoding and transforming.",
              MetricType::Counter);
  page.Sample(Seconds(totals.read_ns), {{"stage", "read"}});
  page.Sample(Seconds(totals.decode_ns), {{"stage", "decode"}});
  page.Counter("pinfeed_feed_starved_seconds_total",
               "Time in which trainers waited for a batch, over all feeds.", Seconds(totals.starved_ns));
  page.Counter("pinfeed_feed_full_seconds_total",
               "Time in which every slot waited for its trainer, over all feeds.", Seconds(totals.full_ns));
  page.Family("pinfeed_refusals_total", "Connections, requests and frames turned away.", MetricType::Counter);
  for (size_t i = 0; i < snapshot.refusals.size(); ++i) {
    page.Sample(static_cast<double>(snapshot.refusals[i]),
                {{"reason", std::string(RefusalName(static_cast<Refusal>(i)))}});
  }
}

void AddFallbacks(const DaemonSnapshot& snapshot, Page& page) {
  page.Family("pinfeed_fallbacks_total", "Sessions that got a lesser backend than the best of their GPU.",
              MetricType::Counter);
  page.Sample(static_cast<double>(snapshot.fallbacks.cuda_ipc), {{"backend", "cuda-ipc"}});
  page.Sample(static_cast<double>(snapshot.fallbacks.host), {{"backend", "host"}});
}

void AddFeeds(const DaemonSnapshot& snapshot, Page& page) {
  page.Family("pinfeed_feeds", "Feeds by state.", MetricType::Gauge);
  for (const char* state : {"waiting", "running", "draining", "ended", "failed"}) {
    double count = 0;
    for (const FeedReport& report : snapshot.feeds) count += report.feed.state == state ? 1 : 0;
    page.Sample(count, {{"state", state}});
  }
  page.Family("pinfeed_sessions", "Sessions by state.", MetricType::Gauge);
  for (const char* state : {"pending", "attached", "orphaned"}) {
    double count = 0;
    for (const FeedReport& report : snapshot.feeds) {
      for (const SessionSnapshot& session : report.sessions) count += session.state == state ? 1 : 0;
    }
    page.Sample(count, {{"state", state}});
  }
  if (snapshot.feeds.empty()) return;
  page.Family("pinfeed_feed_slots", "Slots of a feed by state.", MetricType::Gauge);
  for (const FeedReport& report : snapshot.feeds) {
    const std::string feed = std::to_string(report.feed.id);
    page.Sample(report.feed.slots_free, {{"feed", feed}, {"state", "free"}});
    page.Sample(report.feed.slots_filling, {{"feed", feed}, {"state", "filling"}});
    page.Sample(report.feed.slots_ready, {{"feed", feed}, {"state", "ready"}});
    page.Sample(report.feed.slots_lent, {{"feed", feed}, {"state", "lent"}});
  }
  page.Family("pinfeed_feed_epoch", "Epoch of the batch a feed published last.", MetricType::Gauge);
  for (const FeedReport& report : snapshot.feeds) {
    page.Sample(static_cast<double>(report.feed.epoch),
                {{"feed", std::to_string(report.feed.id)}, {"dataset", report.feed.dataset}});
  }
}

void AddGpus(const DaemonSnapshot& snapshot, Page& page) {
  if (snapshot.gpus.empty()) return;
  const auto family = [&](const char* name, const char* help, MetricType type, auto value) {
    page.Family(name, help, type);
    for (const GpuSnapshot& gpu : snapshot.gpus) page.Sample(value(gpu), {{"gpu", gpu.uuid}});
  };
  family("pinfeed_gpu_arena_capacity_bytes", "Memory of a GPU that batches may take.", MetricType::Gauge,
         [](const GpuSnapshot& gpu) { return static_cast<double>(gpu.arena_capacity_bytes); });
  family("pinfeed_gpu_arena_used_bytes", "Memory of a GPU that batches take.", MetricType::Gauge,
         [](const GpuSnapshot& gpu) { return static_cast<double>(gpu.arena_used_bytes); });
  family("pinfeed_gpu_lingering_bytes",
         "Of these: memory of clients that ended without a farewell, until none of their work can be left.",
         MetricType::Gauge,
         [](const GpuSnapshot& gpu) { return static_cast<double>(gpu.lingering_bytes()); });
  family("pinfeed_gpu_copies_total", "Batches copied to a GPU.", MetricType::Counter,
         [](const GpuSnapshot& gpu) { return static_cast<double>(gpu.copies); });
  family("pinfeed_gpu_copied_bytes_total", "Bytes copied to a GPU.", MetricType::Counter,
         [](const GpuSnapshot& gpu) { return static_cast<double>(gpu.copied_bytes); });
  family("pinfeed_gpu_copy_seconds_total", "Time in which a GPU's copy stream had something to do.",
         MetricType::Counter, [](const GpuSnapshot& gpu) { return Seconds(gpu.copy_ns); });
  family("pinfeed_gpu_queue_seconds_total",
         "Time that filled batches waited for their copy to begin, all together.", MetricType::Counter,
         [](const GpuSnapshot& gpu) { return Seconds(gpu.queue_ns); });
}

}  // namespace

std::vector<MetricFamily> MetricsOf(const DaemonSnapshot& snapshot, const std::string& version) {
  Page page;
  AddHost(snapshot, version, page);
  AddTotals(snapshot, page);
  AddFallbacks(snapshot, page);
  AddFeeds(snapshot, page);
  AddGpus(snapshot, page);
  return std::move(page).Take();
}

std::vector<MetricFamily> MetricsCollector::Collect() const {
  return MetricsOf(snapshot_(), version_);
}

}  // namespace pinfeed
