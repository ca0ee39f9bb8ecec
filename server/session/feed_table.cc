// SPDX-License-Identifier: Apache-2.0
#include "server/session/feed_table.h"

#include <algorithm>
#include <chrono>

#include "common/base/byte_size.h"
#include "common/base/log.h"
#include "common/base/log_context.h"
#include "common/base/quote.h"
#include "common/os/start_thread.h"
#include "common/spec/differing_fields.h"
#include "common/spec/names.h"

namespace pinfeed {
namespace {

constexpr std::chrono::seconds kLongestRest{1};  // the time to come to rest, unless workers hang

void Add(const FeedSnapshot& feed, FeedTotals& totals) {
  totals.batches += feed.batches;
  totals.samples += feed.samples;
  totals.bytes += feed.bytes;
  totals.bad_samples += feed.bad_samples;
  totals.ignored_releases += feed.ignored_releases;
  for (size_t i = 0; i < feed.stall_ns.size(); ++i) totals.stall_ns[i] += feed.stall_ns[i];
  totals.filling += feed.filling;
  totals.lent += feed.lent;
  if (!feed.error.ok()) ++totals.failures[CodeIndex(feed.error.code())];
}

}  // namespace

FeedTable::~FeedTable() {
  Stop();
}

void FeedTable::Start() {
  reaper_ = StartThread("feed-reaper", [this] { Reap(); });
}

void FeedTable::Stop() {
  {
    const MutexLock lock(mutex_);
    PF_CHECK(std::ranges::all_of(entries_, [](const auto& item) { return item.second.sessions == 0; }),
             "sessions end before the feed table");
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (reaper_.joinable()) reaper_.join();
}

Result<std::shared_ptr<Feed>> FeedTable::MakeFeed(const Make& make) {
  uint64_t id = 0;
  {
    const MutexLock lock(mutex_);
    id = next_id_++;
  }
  const LogScope scope({.feed = id});
  ASSIGN_OR_RETURN(std::unique_ptr<Feed> made, make(id));
  const std::shared_ptr<Feed> feed(made.release(), [this](Feed* last) { Retire(last); });
  const FeedSpec& spec = feed->spec();
  spdlog::info("feed {}: {}, batches of {}, {} slots of {} bytes, {}", id, QuotePath(feed->dataset().path),
               spec.batch_size, feed->arena().slot_count(), feed->arena().slot_stride(),
               SharingName(spec.sharing));
  return feed;
}

std::shared_ptr<Session> FeedTable::AddSession(const std::shared_ptr<Feed>& feed) {
  Entry& entry = entries_[feed->id()];
  if (entry.feed == nullptr) {
    entry.feed = feed;
    ++ended_.feeds;
  }
  ++entry.active;
  ++entry.sessions;
  return std::make_shared<Session>(*this, feed);
}

Result<std::shared_ptr<Session>> FeedTable::Join(uid_t uid, const FeedSpec& spec, const Make& make) {
  if (spec.sharing == Sharing::kExclusive) {
    if (!make) return nullptr;
    ASSIGN_OR_RETURN(const std::shared_ptr<Feed> feed, MakeFeed(make));
    const MutexLock lock(mutex_);
    return AddSession(feed);
  }
  const GroupKey key(uid, spec.group);
  {
    const MutexLock lock(mutex_);
    while (true) {
      const auto group = groups_.find(key);
      if (group == groups_.end() || (group->second.feed == nullptr && !make)) {
        if (!make) return nullptr;
        groups_.emplace(key, Group{spec, nullptr});
        break;  // this session creates the feed
      }
      if (!MayShareFeed(group->second.spec, spec)) {
        return FailedPrecondition("group: the feed of group " + QuotePath(spec.group) +
                                  " was opened with another spec; it differs in " +
                                  DifferingFields(group->second.spec, spec));
      }
      if (group->second.feed != nullptr) return AddSession(group->second.feed);
      changed_.Wait(mutex_);
    }
  }
  const Result<std::shared_ptr<Feed>> feed = MakeFeed(make);
  const MutexLock lock(mutex_);
  changed_.NotifyAll();
  if (!feed.ok()) {
    groups_.erase(key);
    return feed.status();
  }
  groups_[key] = {(*feed)->spec(), *feed};
  return AddSession(*feed);
}

size_t FeedTable::Depart(Session& session, const Departure& departure) {
  const std::shared_ptr<Feed>& feed = session.feed;
  bool is_last = false;
  {
    const MutexLock lock(mutex_);
    if (std::exchange(session.taking_part, false)) is_last = --entries_.at(feed->id()).active == 0;
    if (is_last) std::erase_if(groups_, [&](const auto& group) { return group.second.feed == feed; });
  }
  const size_t kept = feed->Depart(session, departure);
  if (is_last) feed->Stop([this, id = feed->id()] { OnRest(id); });
  return kept;
}

std::shared_ptr<Feed> FeedTable::FindGroup(uid_t uid, const std::string& group) const {
  const MutexLock lock(mutex_);
  const auto found = groups_.find({uid, group});
  return found == groups_.end() ? nullptr : found->second.feed;
}

bool FeedTable::IsShared(const Feed& feed) const {
  const MutexLock lock(mutex_);
  const auto entry = entries_.find(feed.id());
  return entry != entries_.end() && entry->second.active > 1;
}

void FeedTable::OnRest(uint64_t id) {
  const MutexLock lock(mutex_);
  Entry& entry = entries_.at(id);
  entry.at_rest = true;
  EndIfOver(entry);
}

void FeedTable::EndIfOver(Entry& entry) {
  if (entry.sessions > 0 || !entry.at_rest) return;
  jobs_.push_back({.feed = entry.feed,
                   .discard = !entry.mapped,
                   .remaining_mappers = std::move(entry.remaining_mappers)});
  changed_.NotifyAll();
}

void FeedTable::Release(Session& session) {
  Depart(session, {.reason = DepartureReason::kCancelled});  // one that was never admitted
  // A client that was not served has got no batch, and neither has any before the group is complete.
  const bool keep = session.served && session.feed->HasBegun();
  std::optional<ClientProcess> mapper;
  if (session.mapped) mapper = std::move(session.process);
  if (mapper && session.resident != nullptr) session.resident->AddRemainingMapper(*mapper);
  const MutexLock lock(mutex_);
  if (session.part != nullptr) {
    Job leave{.feed = session.feed, .part = session.part, .keep = keep};
    if (mapper) leave.remaining_mappers.push_back(*mapper);
    jobs_.push_back(std::move(leave));
    changed_.NotifyAll();
  }
  Entry& entry = entries_.at(session.feed->id());
  entry.mapped = entry.mapped || session.mapped;
  if (mapper) AddRemainingMapper(*std::move(mapper), entry.remaining_mappers);
  if (--entry.sessions > 0) return;
  entry.gone = Clock::now();
  EndIfOver(entry);
}

void FeedTable::Reap() {
  while (true) {
    Job job;
    {
      const MutexLock lock(mutex_);
      while (jobs_.empty() && !(stopping_ && entries_.empty())) changed_.Wait(mutex_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      reaping_ = true;
    }
    Do(std::move(job));
    const MutexLock lock(mutex_);
    reaping_ = false;
    current_.reset();
    changed_.NotifyAll();
  }
}

void FeedTable::Begin(std::string what) {
  const MutexLock lock(mutex_);
  current_ = OngoingOperation{"feed-reaper", std::move(what), std::chrono::steady_clock::now()};
}

std::optional<OngoingOperation> FeedTable::CurrentOperation() const {
  const MutexLock lock(mutex_);
  return current_;
}

void FeedTable::Do(Job job) {
  const std::string name = "feed " + std::to_string(job.feed->id());
  const LogScope scope({.feed = job.feed->id()});
  if (job.part != nullptr) {
    std::optional<ClientProcess> remaining_mapper;
    if (!job.remaining_mappers.empty()) remaining_mapper = std::move(job.remaining_mappers.front());
    Begin("giving up the memory of " + name + " on one of its GPUs");
    return job.feed->arena().ReleasePart(*job.part, job.keep, std::move(remaining_mapper));
  }
  FeedSnapshot last = job.feed->Snapshot();
  spdlog::info("feed {}: ended after {} batches, {} bad samples", last.id, last.batches, last.bad_samples);
  {
    const MutexLock lock(mutex_);
    const auto entry = entries_.find(last.id);
    last.starved_ns = std::max(last.starved_ns, entry->second.starved_ns);
    Add(last, ended_);
    entries_.erase(entry);
  }
  Arena& arena = job.feed->arena();
  const std::string memory = ByteSize(arena.mapped_bytes()) + " of " + name + " (" +
                             BackendName(arena.backend()) + ", " + QuotePath(job.feed->dataset().path) + ")";
  if (job.discard) arena.Discard();
  if (!job.remaining_mappers.empty()) arena.SetRemainingMappers(std::move(job.remaining_mappers));
  const std::shared_ptr<const FeedShare> share = job.feed->share();
  const Feed* const feed = job.feed.get();
  job.feed.reset();
  Begin("waiting for the last users of " + name);
  std::unique_ptr<Feed> own = TakeLast(feed);
  Begin("freeing " + memory);
  own.reset();
  Begin("waiting for the tasks of " + name);
  share->AwaitUsers();
}

void FeedTable::Retire(Feed* feed) {
  std::unique_ptr<Feed> last(feed);
  const MutexLock lock(mutex_);
  retired_.push_back(std::move(last));
  changed_.NotifyAll();
}

std::unique_ptr<Feed> FeedTable::TakeLast(const Feed* feed) {
  const MutexLock lock(mutex_);
  while (true) {
    const auto found = std::ranges::find_if(retired_, [feed](const auto& one) { return one.get() == feed; });
    if (found == retired_.end()) {
      changed_.Wait(mutex_);
      continue;
    }
    std::unique_ptr<Feed> last = std::move(*found);
    retired_.erase(found);
    return last;
  }
}

void FeedTable::AwaitReclaim(Clock::time_point deadline) {
  const MutexLock lock(mutex_);
  while (true) {
    const Clock::time_point until = std::min(deadline, ReclaimingUntil());
    if (until <= Clock::now()) return;
    changed_.WaitUntil(mutex_, until);
  }
}

FeedTable::Clock::time_point FeedTable::ReclaimingUntil() const {
  if (!jobs_.empty() || reaping_) return Clock::time_point::max();
  Clock::time_point until = Clock::time_point::min();
  for (const auto& [id, entry] : entries_)
    if (entry.sessions == 0) until = std::max(until, entry.gone + kLongestRest);
  return until;
}

std::vector<std::shared_ptr<Feed>> FeedTable::All() const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Feed>> all;
  for (const auto& [id, entry] : entries_) all.push_back(entry.feed);
  return all;
}

FeedTable::View FeedTable::Snapshot() {
  View view;
  std::vector<std::shared_ptr<Feed>> feeds;
  {
    // List and totals under one lock, so that each feed is in exactly one of them.
    const MutexLock lock(mutex_);
    view.totals = ended_;
    for (const auto& [id, entry] : entries_) feeds.push_back(entry.feed);
  }
  for (const auto& feed : feeds) {
    FeedReport report;
    report.feed = feed->Snapshot();
    view.feeds.push_back(std::move(report));
  }
  const MutexLock lock(mutex_);
  for (FeedReport& report : view.feeds) {
    if (const auto entry = entries_.find(report.feed.id); entry != entries_.end()) {
      entry->second.starved_ns = std::max(entry->second.starved_ns, report.feed.starved_ns);
      report.feed.starved_ns = entry->second.starved_ns;
    }
    Add(report.feed, view.totals);
  }
  return view;
}

}  // namespace pinfeed
