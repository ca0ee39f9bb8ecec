// SPDX-License-Identifier: Apache-2.0
// Names follow prometheus.io/docs/practices/naming: base units, which names end in, and words that mean the
// same everywhere. Labels never contain text that clients choose, such as client names and paths.
// Long because: it is one table, with a row for each figure.
#include "server/metrics/figures.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "common/spec/names.h"
#include "server/metrics/figure_values.h"

namespace pinfeed {
namespace {

FigureSet FiguresOf(const FeedReport& feed);
FigureSet FiguresOf(const SessionSnapshot& session);
FigureSet FiguresOf(const UserLimits& limits);
FigureSet FiguresOf(const GpuSnapshot& gpu);
FigureSet FiguresOf(const HungThread& thread);
FigureSet FiguresOf(const BadSampleNote& sample);
FigureSet FiguresOf(const BatcherQueue::ConsumerCounts& consumer);
FigureSet FiguresOf(const QuarantinedMemory& memory);

template <typename Entity>
FigureValue SetsOf(const std::vector<Entity>& entities) {
  std::vector<FigureSet> sets;
  sets.reserve(entities.size());
  for (const Entity& entity : entities) sets.push_back(FiguresOf(entity));
  return sets;
}
template <auto kMember, typename Entity>
FigureValue ListOf(const Entity& entity) {
  return SetsOf(entity.*kMember);
}

// How many of `states` are each of the possible ones.
FigureCounts CountStates(std::initializer_list<std::string_view> possible,
                         const std::vector<std::string_view>& states) {
  FigureCounts counts;
  for (const std::string_view state : possible)
    counts.parts.emplace_back(state, std::count(states.begin(), states.end(), state));
  return counts;
}

FigureValue FeedStates(const DaemonSnapshot& daemon) {
  std::vector<std::string_view> states;
  for (const FeedReport& report : daemon.feeds) states.emplace_back(report.feed.state);
  return CountStates({"waiting", "running", "draining", "ended", "failed"}, states);
}

FigureValue SessionStates(const DaemonSnapshot& daemon) {
  std::vector<std::string_view> states;
  for (const FeedReport& report : daemon.feeds)
    for (const SessionSnapshot& session : report.sessions) states.emplace_back(session.state);
  return CountStates({"pending", "attached", "orphaned", "evicted", "left"}, states);
}

template <auto kMember>
FigureValue OfRequests(const FeedReport& report) {
  return report.feed.requests ? ValueOf(*report.feed.requests.*kMember) : FigureValue();
}

FigureValue RequestEnds(const FeedReport& report) {
  if (!report.feed.requests) return {};
  FigureCounts ends;
  for (size_t i = 0; i < kRequestEndNames.size(); ++i)
    ends.parts.emplace_back(kRequestEndNames[i], report.feed.requests->ends[i]);
  return ends;
}

FigureValue RequestLatency(const FeedReport& report) {
  if (!report.feed.requests || report.feed.requests->latency.total() == 0) return {};
  const DurationCounts& latency = report.feed.requests->latency;
  return FigureParts{{{"p50", Seconds(latency.QuantileBoundNs(0.5))},
                      {"p90", Seconds(latency.QuantileBoundNs(0.9))},
                      {"p99", Seconds(latency.QuantileBoundNs(0.99))}}};
}

template <auto kMember>
FigureValue OfReadAhead(const FeedReport& report) {
  return ValueOf(report.feed.read_ahead.*kMember);
}

// A worker's or a reader's; the others have a GPU or an operation.
bool HangsAtSample(const HungThread& thread) {
  return thread.gpu.empty() && thread.operation.empty();
}

using enum FigureKind;
using enum Place;

using D = DaemonSnapshot;
using T = FeedTotals;
using R = FeedReport;
using F = FeedSnapshot;
using S = SessionSnapshot;
using U = UserSnapshot;
using L = UserLimits;
using G = GpuSnapshot;
using H = HungThread;
using B = BadSampleNote;
using C = BatcherQueue::ConsumerCounts;
using Q = QuarantinedMemory;

constexpr auto kDaemon = std::to_array<FigureRow<DaemonSnapshot>>({
    {"version", kFact, kLabel, Of<&D::version>, "Version of pinfeedd."},
    {"backend", kFact, kLabel,
     [](const D& d) -> FigureValue { return d.gpus.empty() ? "host" : "cuda"; },
     "`host` or `cuda`; the message adds why no GPU can be used."},
    {"server_epoch", kFact, kStatus, Of<&D::server_epoch>, "Differs after each start."},
    {"pid", kFact, kStatus, [](const D&) { return ValueOf(::getpid()); },
     "Process id of the daemon."},
    {"uptime_seconds", kGauge, kStatus, Of<&D::uptime_seconds>,
     "Time since the daemon started."},
    {"state", kFact, kStatus,
     [](const D& d) -> FigureValue {
       return d.draining ? "draining" : d.ready ? "ready" : "not ready";
     },
     "`ready`, `draining` or `not ready`."},
    {"ready", kGauge, kMetric,
     [](const D& d) { return ValueOf(d.ready && !d.draining); },
     "1 while clients can open feeds."},
    {"draining", kGauge, kMetric, Of<&D::draining>,
     "1 while the daemon drains: it waits for its clients to leave."},
    {"draining_seconds", kGauge, kAll, Of<&D::draining_seconds>,
     "Time since the drain began; 0: not draining."},
    {"config_last_reload_successful", kGauge, kAll, Of<&D::config_good>,
     "1 when the last attempt to load the configuration succeeded."},
    {"config_last_reload_success_timestamp_seconds", kGauge, kAll,
     Of<&D::config_unix_seconds>, "Unix time at which the configuration in force was loaded."},
    {"admin_certificate_expiry_timestamp_seconds", kGauge, kAll,
     Of<&D::admin_certificate_until_unix_seconds>,
     "Unix time at which the admin endpoint's certificate, or the last one of admin_ca, expires; absent "
     "without the endpoint."},
    {"workers", kGauge, kAll, Of<&D::workers>, "Threads that load samples."},
    {"workers_busy", kGauge, kAll, Of<&D::workers_busy>,
     "Worker threads that are loading samples."},
    {"worker_chunks", kCounter, kAll, Of<&D::worker_chunks>,
     "Chunks of batches that workers and readers have finished; it does not grow while all of them hang."},
    {"worker_chunk_age_seconds", kGauge, kAll, Of<&D::worker_chunk_age_seconds>,
     "Age of the oldest chunk in progress; 0: all workers and readers are idle."},
    {"hung", kList, kStatus, ListOf<&D::hung>, "Threads that hang while the daemon is ready."},
    {"sample_duration_seconds", kHistogram, kMetric,
     [](const D& d) -> FigureValue {
       return FigureHistograms{
           {{"read", d.sample_durations.read}, {"decode", d.sample_durations.decode}}};
     },
     "Worker time of a sample: read (waiting for the source) or decode (decoding and transforming an image).",
     "stage"},
    {"batch_fill_duration_seconds", kHistogram, kMetric, OfTotals<&T::filling>,
     "Time from planning a batch until its slot was filled."},
    {"batch_lent_duration_seconds", kHistogram, kMetric, OfTotals<&T::lent>,
     "Time from publishing a batch until the daemon saw its last release."},
    {"batches", kCounter, kAll, OfTotals<&T::batches>,
     "Batches published; a batch shared by a group counts once."},
    {"samples", kCounter, kAll, OfTotals<&T::samples>, "Samples in published batches; a DataLoader's batch counts as one."},
    {"batch_bytes", kCounter, kAll, OfTotals<&T::bytes>, "Bytes of published batches."},
    {"bad_samples", kCounter, kAll, OfTotals<&T::bad_samples>,
     "Samples that could not be used."},
    {"stall_seconds", kCounter, kAll, OfTotals<&T::stall_ns>,
     "Waiting time, summed over all feeds: trainers waiting for read, decode, workers or copy; feeds waiting "
     "for their consumer, the trainers.",
     "cause"},
    {"pool_capacity_bytes", kGauge, kAll, Of<&D::pool_capacity_bytes>,
     "Host memory available for batches."},
    {"pool_used_bytes", kGauge, kAll, Of<&D::pool_used_bytes>,
     "Host memory used by batches."},
    {"pool_kept_bytes", kGauge, kAll, Of<&D::kept_bytes>,
     "Part of the used host memory that belongs to ended feeds and is still mapped by a process."},
    {"cache_capacity_bytes", kGauge, kAll, Of<&D::cache_capacity_bytes>,
     "Host memory available for decoded images (cache_bytes); 0: they are not cached."},
    {"cache_used_bytes", kGauge, kAll, Of<&D::cache_used_bytes>, "Host memory used by decoded images."},
    {"cache_entries", kGauge, kAll, Of<&D::cache_entries>, "Decoded images in the cache."},
    {"cache_hits", kCounter, kAll, Of<&D::cache_hits>, "Samples whose decoded image was in the cache."},
    {"cache_misses", kCounter, kAll, Of<&D::cache_misses>,
     "Samples whose decoded image could have been in the cache and was not."},
    {"cache_evictions", kCounter, kAll, Of<&D::cache_evictions>,
     "Decoded images that gave way to others."},
    {"cache_made_ahead", kCounter, kAll, Of<&D::cache_made_ahead>,
     "Images that idle workers decoded into the cache before a sample needed them."},
    {"folders_listed", kCounter, kAll, Of<&D::folders_listed>,
     "Directories that were listed to open datasets, while index_dir is in use."},
    {"folders_unchanged", kCounter, kAll, Of<&D::folders_unchanged>,
     "Directories that were not listed to open datasets, since index_dir has their file names."},
    {"arenas", kGauge, kMetric, [](const D& d) { return ValueOf(d.feeds.size()); },
     "Arenas, each with the slots of one feed."},
    {"feeds", kGauge, kMetric, FeedStates, "Feeds by state.", "state"},
    {"feeds_opened", kCounter, kAll, OfTotals<&T::feeds>, "Feeds opened."},
    {"feed_failures", kCounter, kAll, OfTotals<&T::failures>,
     "Feeds that failed, by error code.", "code"},
    {"sessions", kGauge, kMetric, SessionStates, "Sessions by state.", "state"},
    {"sessions_limit", kGauge, kAll, Of<&D::max_sessions>,
     "Maximum number of concurrent sessions (max_sessions)."},
    {"sessions_opened", kCounter, kAll, Of<&D::sessions_opened>, "Sessions opened."},
    {"sessions_closed", kCounter, kAll, Of<&D::sessions_closed>,
     "Sessions that ended for any reason."},
    {"refusals", kCounter, kAll, Of<&D::refusals>,
     "Connections, requests and frames refused.", "reason"},
    {"refused_requests", kCounter, kAll, Of<&D::refused_requests>,
     "Calls that failed, by error code; most of operators' are in refusals only.", "code"},
    {"fallbacks", kCounter, kAll,
     [](const D& d) -> FigureValue {
       return FigureCounts{{{"cuda-ipc", d.fallbacks.cuda_ipc}, {"host", d.fallbacks.host}}};
     },
     "Sessions that got a slower backend than the best one of their GPU, by the backend used.", "backend"},
    {"ignored_releases", kCounter, kAll, OfTotals<&T::ignored_releases>,
     "Release words with a generation other than the slot's."},
    {"feeds", kList, kStatus, ListOf<&D::feeds>, "The feeds."},
    {"gpus", kList, kStatus, ListOf<&D::gpus>, "The GPUs that the daemon feeds."},
    {"users", kList, kStatus, ListOf<&D::users>, "Users with sessions or memory, by uid."},
    {"user_limits", kObject, kStatus,
     [](const D& d) { return SetsOf(std::vector{d.user_limits}); },
     "What each user may have."},
});

constexpr auto kFeed = std::to_array<FigureRow<FeedReport>>({
    {"id", kFact, kStatus, OfFeed<&F::id>, "Number of the feed."},
    {"dataset", kFact, kMessage, OfFeed<&F::dataset>, "Path of the dataset."},
    {"name", kFact, kStatus, OfFeed<&F::name>,
     "Configured name of the dataset, or the last part of its path."},
    {"dataset_samples", kFact, kStatus, OfFeed<&F::dataset_samples>, "Samples in the dataset; 2^53 for a DataLoader, which does not tell."},
    {"batch_size", kFact, kStatus, OfFeed<&F::batch_size>, "Samples in a batch; 1 for a DataLoader, which does not tell."},
    {"shuffled", kFact, kStatus, OfFeed<&F::shuffled>, "Whether the order is random."},
    {"group_size", kFact, kStatus, OfFeed<&F::group_size>,
     "Members that a group waits for before its first batch; 0: the feed is not shared."},
    {"sharing", kFact, kLabel,
     [](const R& r) -> FigureValue { return std::string(SharingName(r.feed.sharing)); },
     "`exclusive`, `broadcast` or `queue`."},
    {"memory", kFact, kLabel, [](const R& r) -> FigureValue { return r.feed.on_device ? "gpu" : "host"; },
     "`gpu` or `host`: where the slots are."},
    {"decode", kFact, kStatus, OfFeed<&F::decode>,
     "How images are decoded: `cpu`, `gpu`, or `auto:` and the share of the GPU, per mille."},
    {"resident_bytes", kGauge, kAll, OfFeed<&F::resident_bytes>,
     "Memory of the GPU that holds all samples of a feed, shared with other feeds; 0: it does not."},
    {"resident_loading", kFact, kStatus, OfFeed<&F::resident_loading>, "Whether these are being loaded."},
    {"resident_note", kFact, kMessage, OfFeed<&F::resident_note>,
     "Why the samples are not resident, if the feed left that open."},
    {"state", kFact, kStatus, OfFeed<&F::state>,
     "`waiting` (for its group), `running`, `draining`, `ended` or `failed`."},
    {"error", kFact, kMessage,
     [](const R& r) -> FigureValue { return r.feed.error.ok() ? std::string() : r.feed.error.ToString(); },
     "Why it failed."},
    {"error_code", kFact, kStatus,
     [](const R& r) -> FigureValue {
       return r.feed.error.ok() ? std::string() : std::string(CodeName(r.feed.error.code()));
     },
     "Error code of a failed feed."},
    {"slots", kGauge, kAll,
     [](const R& r) -> FigureValue {
       return FigureCounts{{{"free", r.feed.slots_free},
                            {"filling", r.feed.slots_filling},
                            {"ready", r.feed.slots_ready},
                            {"lent", r.feed.slots_lent}}};
     },
     "Slots of a feed by state.", "state"},
    {"slots_free", kGauge, kStatus, OfFeed<&F::slots_free>, "Slots without a batch."},
    {"slots_filling", kGauge, kStatus, OfFeed<&F::slots_filling>, "Slots whose batch is being filled."},
    {"slots_ready", kGauge, kStatus, OfFeed<&F::slots_ready>, "Filled slots, not yet published."},
    {"slots_lent", kGauge, kStatus, OfFeed<&F::slots_lent>, "Slots that are published and not released."},
    {"slot_states", kFact, kStatus, OfFeed<&F::slot_states>,
     "A letter for each slot: free, workers fill it, copied to the GPU, ready, lent."},
    {"max_workers", kGauge, kStatus, OfFeed<&F::max_workers>,
     "Workers that may load for it at once: few if its batches are small, or to leave processors to clients "
     "that decode and workers to other ranks, or memory to copies. 0: others fill it."},
    {"arena_bytes", kGauge, kAll, OfFeed<&F::arena_bytes>, "Memory of a feed's slots."},
    {"epoch", kGauge, kAll, OfFeed<&F::epoch>, "Epoch of the batch that a feed published last."},
    {"batch_index", kGauge, kStatus, OfFeed<&F::batch_index>, "Index of that batch in its epoch."},
    {"batches", kCounter, kAll, OfFeed<&F::batches>, "Batches that a feed published."},
    {"samples", kCounter, kAll, OfFeed<&F::samples>, "Samples in the batches that a feed published; a DataLoader's batch counts as one."},
    {"batch_bytes", kCounter, kStatus, OfFeed<&F::bytes>, "Bytes of those batches."},
    {"bad_samples", kCounter, kAll, OfFeed<&F::bad_samples>, "Samples of a feed that could not be used."},
    {"last_bad_samples", kList, kMessage, [](const R& r) { return SetsOf(r.feed.last_bad_samples); },
     "The newest few of them."},
    {"producers", kGauge, kAll, OfFeed<&F::producers>,
     "Processes that fill a feed's batches; 0 if the daemon's workers do."},
    {"producers_busy", kGauge, kAll, OfFeed<&F::producers_busy>, "Part of them that have a batch to fill."},
    {"slowest_producer_pid", kFact, kStatus, OfFeed<&F::slowest_producer_pid>,
     "Process of the producer that has been at its batch for longest; 0: none has one."},
    {"slowest_producer_task", kFact, kStatus, OfFeed<&F::slowest_producer_task>, "Batch that this producer fills."},
    {"slowest_producer_seconds", kGauge, kStatus, SecondsOfFeed<&F::slowest_producer_ns>,
     "How long it has been at that batch."},
    {"data_end", kFact, kStatus, OfFeed<&F::data_end>,
     "First batch that does not exist, as far as producers said; empty: none did."},
    {"batches_dealt_again", kCounter, kAll, OfFeed<&F::batches_dealt_again>,
     "Batches that went to another producer because the first one ended or took too long."},
    {"one_off_batches", kCounter, kAll, OfFeed<&F::one_off_batches>,
     "Batches that did not fit into their slot and got memory of their own; max_batch_bytes makes room."},
    {"one_off_bytes", kGauge, kAll, OfFeed<&F::one_off_bytes>,
     "Host memory of such batches that processes have now; part of the used host memory."},
    {"one_off_peak_bytes", kGauge, kAll, OfFeed<&F::one_off_peak_bytes>, "Its highest value so far."},
    {"cache_hits", kCounter, kAll, OfFeed<&F::cache_hits>,
     "Samples of a feed whose decoded image was in the cache."},
    {"cache_misses", kCounter, kAll, OfFeed<&F::cache_misses>,
     "Samples of a feed whose decoded image could have been in the cache and was not."},
    {"read_ahead_on", kGauge, kAll, OfReadAhead<&ReadAheadUse::on>,
     "1 while a feed reads ahead of its workers, because it found reads of local files slow."},
    {"read_ahead_starts", kCounter, kAll, OfReadAhead<&ReadAheadUse::starts>,
     "How often that was switched on."},
    {"read_ahead_samples", kCounter, kAll, OfReadAhead<&ReadAheadUse::samples>,
     "Samples of a feed that the disk was asked for ahead of the workers; those in the page cache do not count."},
    {"read_ahead_bytes", kCounter, kAll, OfReadAhead<&ReadAheadUse::bytes>, "Bytes of those samples."},
    {"staged_bytes", kCounter, kAll, OfFeed<&F::staged_bytes>,
     "Bytes copied to the slots of a shared feed from where its producers write."},
    {"requests", kCounter, kAll, OfRequests<&BatcherQueue::Counts::requests>,
     "Requests that clients submitted to a batcher."},
    {"requests_ended", kCounter, kAll, RequestEnds,
     "Requests that were answered or failed, by how they ended.", "end"},
    {"requests_waiting", kGauge, kAll, OfRequests<&BatcherQueue::Counts::waiting>,
     "Requests that wait for a batch."},
    {"requests_dealt_again", kCounter, kAll, OfRequests<&BatcherQueue::Counts::again>,
     "Requests that went to another consumer because the first one ended, or did not take them in time."},
    {"request_latency_seconds", kGauge, kStatus, RequestLatency,
     "Latency of answered requests, as upper bounds: `p50`, `p90` and `p99`."},
    {"request_duration_seconds", kHistogram, kMetric, OfRequests<&BatcherQueue::Counts::latency>,
     "Time from a request's arrival until its answer was passed on."},
    {"consumers", kList, kStatus,
     [](const R& r) { return r.feed.requests ? SetsOf(r.feed.requests->consumers) : FigureValue(); },
     "The processes that answer a batcher's requests."},
    {"running_seconds", kCounter, kAll, SecondsOfFeed<&F::running_ns>,
     "Time that a feed has run; divide its stall times by it."},
    {"stall_seconds", kCounter, kAll, OfFeed<&F::stall_ns>,
     "Waiting time in a feed: the mean over its trainers for read, decode, workers or copy; the feed's own "
     "for its consumer.",
     "cause"},
    {"recent", kGauge, kStatus, OfFeed<&F::recent>,
     "Shares of the last seconds that the stall times took, by cause; absent: not measured yet."},
    {"read_seconds", kCounter, kStatus, SecondsOfFeed<&F::read_ns>,
     "Time in which workers waited for the source."},
    {"decode_seconds", kCounter, kStatus, SecondsOfFeed<&F::decode_ns>,
     "Time in which workers decoded and transformed."},
    {"starved_seconds", kCounter, kStatus, SecondsOfFeed<&F::starved_ns>,
     "Time in which the trainers waited for a batch: their mean."},
    {"full_seconds", kCounter, kStatus, SecondsOfFeed<&F::full_ns>,
     "Time in which every slot was ready or lent."},
    {"bound_on", kFact, kStatus, OfFeed<&F::bound_on>, "The cause of most of the waiting."},
    {"bound_share", kGauge, kStatus,
     [](const R& r) { return ValueOf(std::clamp(r.feed.bound_share, 0.0, 1.0)); },
     "Share of the running time that this cause explains."},
    {"sessions", kList, kStatus, ListOf<&R::sessions>, "The sessions of the feed."},
});

constexpr auto kSession = std::to_array<FigureRow<SessionSnapshot>>({
    {"id", kFact, kStatus, Of<&S::id>, "Number of the session."},
    {"client_name", kFact, kStatus, Of<&S::client_name>, "Name that the client gives itself."},
    {"pid", kFact, kLabel, Of<&S::pid>, "Process id of the client."},
    {"uid", kFact, kLabel, Of<&S::uid>, "User id of the client."},
    {"state", kFact, kLabel, Of<&S::state>, "`pending`, `attached`, `orphaned`, `evicted` or `left`."},
    {"backend", kFact, kStatus, Of<&S::backend>, "`host`, `vmm-fd` or `cuda-ipc`."},
    {"fallback", kFact, kMessage, Of<&S::fallback>, "Why a better backend is not used."},
    {"batches", kCounter, kAll, Of<&S::batches_published>, "Batches published to a session."},
    {"batches_taken", kCounter, kStatus, Of<&S::batches_taken>,
     "Part of them that the client reports as taken."},
    {"batches_copied", kCounter, kStatus, Of<&S::batches_copied>,
     "Part of the taken ones that the client copied because its trainer held too many slots."},
    {"slots", kGauge, kAttached,
     [](const S& s) -> FigureValue {
       return FigureCounts{{{"ready", s.slots_lent - s.slots_held}, {"held", s.slots_held}}};
     },
     "Batches of a session: ready, or held by its trainer (as the client reports).", "state"},
    {"slots_ready", kGauge, kStatus, [](const S& s) { return ValueOf(s.slots_lent - s.slots_held); },
     "Batches of a session that are ready to be taken."},
    {"slots_held", kGauge, kStatus, Of<&S::slots_held>, "Batches of a session that its trainer holds."},
    {"lease_age_seconds", kGauge, kAttached, Of<&S::oldest_lease_seconds>,
     "Time for which the trainer of a session has held a batch, or taken none of those that are ready; 0: it "
     "has no batch."},
    {"wait_seconds", kCounter, kStatus, Of<&S::wait_seconds>,
     "Time for which the trainer has waited, as the client reports it."},
    {"stall_seconds", kCounter, kAttached, Of<&S::stall_ns>,
     "Waiting time of a session's trainer for read, decode, workers or copy, as the client reports it, "
     "limited to the elapsed time; consumer: its feed had no free slot and this session held some; group: "
     "its feed had no free slot and other sessions held more.",
     "cause"},
    {"recent", kGauge, kStatus, Of<&S::recent>,
     "Shares of the last seconds that the stall times took, by cause; absent: not measured yet."},
    {"ignored_releases", kCounter, kStatus, Of<&S::ignored_releases>,
     "Release words of a session with a generation other than the slot's."},
});

constexpr auto kUser = std::to_array<FigureRow<UserSnapshot>>({
    {"uid", kFact, kStatus, Of<&U::uid>, "User id."},
    {"sessions", kGauge, kAll, Of<&U::sessions>, "Sessions of a user."},
    {"pool_bytes", kGauge, kAll, Of<&U::pool_bytes>,
     "Host memory used by the feeds of a user, including ended feeds that are still mapped."},
    {"pinned_bytes", kGauge, kAll, Of<&U::pinned_bytes>, "Pinned memory used by the feeds of a user."},
    {"gpu_bytes", kGauge, kAll, Of<&U::gpu_bytes>,
     "GPU memory used by the feeds of a user on all GPUs, including quarantined memory."},
    {"cache_bytes", kGauge, kAll, Of<&U::cache_bytes>,
     "Host memory used by decoded images that the feeds of a user put into the cache."},
});

constexpr auto kUserLimits = std::to_array<FigureRow<UserLimits>>({
    {"sessions_limit", kGauge, kAll, Of<&L::sessions>,
     "Maximum number of sessions per user (user_sessions)."},
    {"pool_limit_bytes", kGauge, kAll, Of<&L::pool_bytes>, "Maximum host memory per user (user_pool_bytes)."},
    {"pinned_limit_bytes", kGauge, kAll, Of<&L::pinned_bytes>,
     "Maximum pinned memory per user (user_pinned_bytes); 0: there is no pinned memory."},
    {"gpu_limit_bytes", kGauge, kAll, Of<&L::gpu_bytes>,
     "Maximum memory per user on each GPU (user_gpu_bytes); 0: there is no GPU."},
    {"cache_limit_bytes", kGauge, kAll, Of<&L::cache_bytes>,
     "Maximum memory per user for decoded images (user_cache_bytes); 0: they are not cached."},
});

constexpr auto kGpu = std::to_array<FigureRow<GpuSnapshot>>({
    {"uuid", kFact, kStatus, Of<&G::uuid>, "UUID of the GPU."},
    {"name", kFact, kStatus, Of<&G::name>, "Its model."},
    {"arena_capacity_bytes", kGauge, kAll, Of<&G::arena_capacity_bytes>, "GPU memory available for batches."},
    {"arena_used_bytes", kGauge, kAll, Of<&G::arena_used_bytes>, "GPU memory used by batches."},
    {"lingering_bytes", kGauge, kAll, [](const G& g) { return ValueOf(g.lingering_bytes()); },
     "Part of the used GPU memory that is quarantined: its clients ended without a bye, and their GPU work "
     "may still access it."},
    {"lingering", kList, kMessage, ListOf<&G::lingering>, "The pieces of that memory."},
    {"copies", kCounter, kAll, Of<&G::copies>, "Copies from the host to a GPU."},
    {"copied_bytes", kCounter, kAll, Of<&G::copied_bytes>, "Bytes copied to a GPU from the host."},
    {"peer_copied_bytes", kCounter, kAll, Of<&G::peer_bytes>,
     "Bytes copied to a GPU from other GPUs, for broadcasts to several."},
    {"copy_seconds", kCounter, kAll, SecondsOf<&G::copy_ns>,
     "Time in which a GPU's stream of copies from the host was busy."},
    {"queue_seconds", kCounter, kAll, SecondsOf<&G::queue_ns>,
     "Total time that filled batches waited for their copy to begin."},
    {"copy_duration_seconds", kHistogram, kMetric, Of<&G::copy_durations>,
     "Time from submitting a copy from the host to the driver until its completion was detected."},
    {"copy_errors", kCounter, kAll, Of<&G::copy_errors>,
     "Driver errors while copying to a GPU; the first one stops the daemon."},
    {"stalled_seconds", kGauge, kAll, [](const G& g) { return ValueOf(g.stalled()); },
     "Time since a copy to a GPU last completed while copies are pending; 0: none is pending."},
});

constexpr auto kHung = std::to_array<FigureRow<HungThread>>({
    {"thread", kFact, kStatus, Of<&H::thread>, "Name of the thread."},
    {"seconds", kGauge, kStatus, Of<&H::age>, "Time for which it has hung."},
    {"gpu", kFact, kStatus, [](const H& h) { return h.gpu.empty() ? FigureValue() : ValueOf(h.gpu); },
     "UUID of the GPU of a copy thread."},
    {"operation", kFact, kMessage, Of<&H::operation>,
     "What a thread does that is neither a worker's, a reader's nor a copy thread."},
    {"feed_id", kFact, kStatus, [](const H& h) { return HangsAtSample(h) ? ValueOf(h.feed) : FigureValue(); },
     "Feed of a worker or reader."},
    {"sample_id", kFact, kStatus,
     [](const H& h) { return HangsAtSample(h) ? ValueOf(h.sample) : FigureValue(); }, "Its sample."},
    {"sample", kFact, kMessage,
     [](const H& h) { return HangsAtSample(h) ? ValueOf(h.sample_name) : FigureValue(); },
     "Where that sample is: a file, a row."},
});

constexpr auto kBadSample = std::to_array<FigureRow<BadSampleNote>>({
    {"sample_id", kFact, kMessage, Of<&B::sample_id>, "Index of the sample."},
    {"reason", kFact, kMessage, Of<&B::reason>, "Why it could not be used."},
});

constexpr auto kConsumer = std::to_array<FigureRow<BatcherQueue::ConsumerCounts>>({
    {"pid", kFact, kStatus, Of<&C::pid>, "Its process id."},
    {"batches_held", kGauge, kStatus, Of<&C::batches>, "Batches that it has taken and not answered."},
    {"requests_held", kGauge, kStatus, Of<&C::requests>, "Requests of these that wait for an answer."},
    {"held_seconds", kGauge, kStatus, SecondsOf<&C::oldest_ns>,
     "Time since it took the oldest of these batches; 0: it has none."},
});

constexpr auto kLingering = std::to_array<FigureRow<QuarantinedMemory>>({
    {"backend", kFact, kMessage,
     [](const Q& memory) -> FigureValue { return std::string(BackendName(memory.backend)); },
     "Backend of its feed."},
    {"bytes", kGauge, kMessage, Of<&Q::bytes>, "Its size."},
    {"pids", kFact, kMessage, Of<&Q::pids>, "The processes that had it mapped."},
    {"seconds", kGauge, kMessage, Of<&Q::seconds>, "Time since its feed ended."},
});

constexpr auto kProcess = std::to_array<FigureRow<DaemonSnapshot>>({
    {"start_time_seconds", kGauge, kAll, Of<&D::started_unix_seconds>,
     "Unix time at which the daemon started."},
    {"cpu_seconds", kCounter, kAll, Of<&D::cpu_seconds>, "Processor time of the daemon's threads."},
    {"resident_memory_bytes", kGauge, kAll, Of<&D::resident_bytes>,
     "Resident memory of the daemon, including shared batches."},
    {"open_fds", kGauge, kAll, Of<&D::open_fds>, "File descriptors that the daemon has open."},
    {"max_fds", kGauge, kAll, Of<&D::max_fds>, "File descriptors that the daemon may have open."},
});

constexpr FigureEntity kDaemonEntity = {"pinfeed_", "", "pinfeed_build_info"};
constexpr FigureEntity kFeedEntity = {"pinfeed_feed_", "feed", "pinfeed_feed_info"};
constexpr FigureEntity kSessionEntity = {"pinfeed_session_", "session", "pinfeed_session_info", &kFeedEntity};
constexpr FigureEntity kUserEntity = {"pinfeed_user_", "uid", ""};
constexpr FigureEntity kUserLimitsEntity = {"pinfeed_user_", "", ""};
constexpr FigureEntity kGpuEntity = {"pinfeed_gpu_", "gpu", ""};
constexpr FigureEntity kProcessEntity = {"process_", "", ""};
constexpr FigureEntity kNoMetrics = {};

template <typename Entity, size_t kRows>
FigureSet SetOf(const FigureEntity& kind, const std::array<FigureRow<Entity>, kRows>& rows,
                const Entity& entity) {
  FigureSet set{&kind, {}};
  for (const FigureRow<Entity>& row : rows) set.entries.push_back({&row.figure, row.value(entity)});
  return set;
}

template <typename Rows>
FigureTable TableOf(std::string_view message, const FigureEntity& entity, const Rows& rows) {
  FigureTable table{message, &entity, {}};
  for (const auto& row : rows) table.figures.push_back(&row.figure);
  return table;
}

FigureSet FiguresOf(const FeedReport& feed) {
  return SetOf(kFeedEntity, kFeed, feed);
}
FigureSet FiguresOf(const SessionSnapshot& session) {
  return SetOf(kSessionEntity, kSession, session);
}
FigureSet FiguresOf(const UserLimits& limits) {
  return SetOf(kUserLimitsEntity, kUserLimits, limits);
}
FigureSet FiguresOf(const GpuSnapshot& gpu) {
  return SetOf(kGpuEntity, kGpu, gpu);
}
FigureSet FiguresOf(const HungThread& thread) {
  return SetOf(kNoMetrics, kHung, thread);
}
FigureSet FiguresOf(const BadSampleNote& sample) {
  return SetOf(kNoMetrics, kBadSample, sample);
}
FigureSet FiguresOf(const BatcherQueue::ConsumerCounts& consumer) {
  return SetOf(kNoMetrics, kConsumer, consumer);
}
FigureSet FiguresOf(const QuarantinedMemory& memory) {
  return SetOf(kNoMetrics, kLingering, memory);
}

}  // namespace

FigureSet FiguresOf(const UserSnapshot& user) {
  return SetOf(kUserEntity, kUser, user);
}

FigureSet FiguresOf(const DaemonSnapshot& daemon) {
  FigureSet set = SetOf(kDaemonEntity, kDaemon, daemon);
  const FigureSet process = SetOf(kProcessEntity, kProcess, daemon);
  set.entries.insert(set.entries.end(), process.entries.begin(), process.entries.end());
  return set;
}

std::span<const FigureTable> FigureTables() {
  static const std::vector<FigureTable> kTables = {
      TableOf("GetStatusResponse", kDaemonEntity, kDaemon),
      TableOf("FeedStatus", kFeedEntity, kFeed),
      TableOf("SessionStatus", kSessionEntity, kSession),
      TableOf("UserStatus", kUserEntity, kUser),
      TableOf("UserLimits", kUserLimitsEntity, kUserLimits),
      TableOf("GpuStatus", kGpuEntity, kGpu),
      TableOf("HungThread", kNoMetrics, kHung),
      TableOf("BadSample", kNoMetrics, kBadSample),
      TableOf("BatcherConsumer", kNoMetrics, kConsumer),
      TableOf("LingeringMemory", kNoMetrics, kLingering),
      TableOf("GetStatusResponse", kProcessEntity, kProcess),
  };
  return kTables;
}

}  // namespace pinfeed
