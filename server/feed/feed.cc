// SPDX-License-Identifier: Apache-2.0
#include "server/feed/feed.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/log_context.h"
#include "common/base/log_pace.h"

namespace pinfeed {
namespace {

constexpr uint32_t kMaxFailuresLoggedPerSecond = 20;
constexpr size_t kPublishedTogether = 8;
constexpr uint64_t kSamplesTogether = 8192;

// Set while this thread hands requests of a feed to its producer. Lists of samples are written before that
// returns. A short one takes less time than to advance the feed, so it is advanced once for several: within
// the last one's Produce, where requests for later batches only queue.
struct Handing {
  explicit Handing(const Feed& of) : feed(of), outer(std::exchange(current, this)) {}
  ~Handing() { current = outer; }

  static thread_local Handing* current;
  const Feed& feed;
  Handing* const outer;
  bool more_follow = false;  // and the feed is advanced behind one of them
  bool unpublished = false;  // a batch was delivered, and the feed not advanced since
};
thread_local Handing* Handing::current = nullptr;

}  // namespace

Feed::Feed(FeedParts parts)
    : share_(std::make_shared<FeedShare>(parts.owner, parts.id, parts.max_workers)),
      parts_(std::move(parts)),
      filling_{*parts_.arena, parts_.sampler, parts_.spec.on_bad_sample,
               FeedRecorder(parts_.tracer, parts_.owner, parts_.id), share_.share()},
      bad_sample_log_(parts_.id),
      cycle_(parts_, filling_, *this, *this) {
  const Arena* const staging = parts_.producer->staging();
  PF_CHECK(staging == nullptr || staging->slot_count() == parts_.arena->slot_count(),
           "each slot is copied from its own place of the staging memory");
}

Sampler::Start Feed::Upcoming() const {
  const MutexLock lock(mutex_);
  return cycle_.Upcoming();
}

bool Feed::HasBegun() const {
  const MutexLock lock(mutex_);
  return cycle_.HasBegun();
}

bool Feed::Serves() const {
  const MutexLock lock(mutex_);
  return cycle_.Serves();
}

Status Feed::Attach(Participant& participant) {
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(cycle_.Attach(participant));
    after = AdvanceLocked();
  }
  Do(std::move(after));
  return OkStatus();
}

size_t Feed::Depart(Participant& participant, const Departure& departure) {
  AfterUnlock after;
  size_t kept = 0;
  {
    MutexLock lock(mutex_);
    if (participant.role == Participant::Role::kNone) return 0;
    if (departure.keeps_taken && participant.role == Participant::Role::kHolder) return 0;
    kept = cycle_.Depart(participant, departure);
    after = AdvanceLocked();
  }
  Do(std::move(after));
  return kept;
}

void Feed::ReadReleases() {
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    after = AdvanceLocked();
  }
  Do(std::move(after));
}

void Feed::Drain() {
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    cycle_.Drain();
    after = AdvanceLocked();  // plans nothing more; drains once all planned batches are published
  }
  Do(std::move(after));
  parts_.producer->Drain();
}

void Feed::Stop(std::function<void()> at_rest) {
  filling_.stopped.store(true, std::memory_order_relaxed);
  parts_.producer->Cancel();
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    cycle_.Drain();
    at_rest_ = std::move(at_rest);
    after = AdvanceLocked();
  }
  Do(std::move(after));
}

void Feed::ObserveForTrace(bool last) {
  if (!filling_.recorder.On()) return;
  const MutexLock lock(mutex_);
  cycle_.ObserveForTrace(last);
}

FeedSnapshot Feed::Snapshot() {
  const MutexLock lock(mutex_);
  return cycle_.Snapshot();
}

ParticipantSnapshot Feed::SnapshotOf(const Participant& participant) const {
  const MutexLock lock(mutex_);
  return cycle_.SnapshotOf(participant);
}

Feed::AfterUnlock Feed::AdvanceLocked() {
  AfterUnlock after{cycle_.Advance()};
  for (const std::shared_ptr<PieceRequest>& request : after.work.requests)
    parts_.producer->Announce(*request);
  if (cycle_.AtRest()) after.at_rest = std::exchange(at_rest_, {});
  return after;
}

void Feed::Do(AfterUnlock after) {
  for (const std::shared_ptr<ControlPages>& pages : after.work.published) pages->WakeClient();
  Request(std::move(after.work.requests));
  if (!after.work.failure.ok()) {
    static LogPace pace(kMaxFailuresLoggedPerSecond);
    const LogScope scope({.feed = parts_.id});
    if (const auto more = pace.Admit())
      spdlog::error("feed {}: failed: {}{}", parts_.id, after.work.failure.ToString(), *more);
  }
  if (after.at_rest) after.at_rest();
}

void Feed::Request(BatchCycle::Requests requests) {
  Handing handing(*this);
  uint64_t samples = 0;  // handed over since the feed was to be advanced
  for (size_t i = 0; i < requests.size(); ++i) {
    samples += requests[i]->end() - requests[i]->begin();
    handing.more_follow =
        i + 1 < requests.size() && (i + 1) % kPublishedTogether != 0 && samples < kSamplesTogether;
    if (!handing.more_follow) samples = 0;
    parts_.producer->Produce(std::move(requests[i]));
  }
  if (handing.unpublished) ReadReleases();  // the last one was not delivered at once
}

void Feed::OnPieceMemory() {
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    after.work.requests = cycle_.RequestMore();
    for (const std::shared_ptr<PieceRequest>& request : after.work.requests)
      parts_.producer->Announce(*request);
  }
  Do(std::move(after));
}

void Feed::OnFilled(uint32_t slot, FillResult result) {
  if (result.status.ok()) bad_sample_log_.Log(result.bad);
  MutexLock lock(mutex_);
  cycle_.OnFilled(slot, std::move(result));
}

void Feed::OnDelivered(uint32_t slot, const Status& status) {
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    cycle_.OnDelivered(slot, status);
    if (Handing* const handing = Handing::current; handing != nullptr && &handing->feed == this) {
      handing->unpublished = handing->more_follow;
      if (handing->unpublished) return;
    }
    after = AdvanceLocked();
  }
  Do(std::move(after));
}

bool Feed::OnReplace(uint32_t slot) {
  AfterUnlock after;
  {
    MutexLock lock(mutex_);
    if (!cycle_.Replace(slot)) return false;
    after = AdvanceLocked();
  }
  Do(std::move(after));
  return true;
}

}  // namespace pinfeed
