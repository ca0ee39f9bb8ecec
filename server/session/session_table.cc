// SPDX-License-Identifier: Apache-2.0
#include "server/session/session_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/histogram.h"
#include "common/base/log.h"
#include "common/base/log_pace.h"
#include "common/base/quote.h"
#include "common/spec/names.h"
#include "server/session/feed_table.h"

namespace pinfeed {
namespace {

// The limit for each kind of line, since a client may open and end sessions very fast.
constexpr uint32_t kLinesASecond = 200;

// The waiting that a client reports, limited to the session's age.
double WaitSeconds(const ControlPages::ClientStats& stats, std::chrono::nanoseconds age) {
  const uint64_t most = Nanoseconds(age);
  const uint64_t now = Nanoseconds(std::chrono::steady_clock::now().time_since_epoch());
  uint64_t wait = std::min(stats.wait_ns, most);
  if (stats.waiting_since_ns != 0 && stats.waiting_since_ns <= now)
    wait += std::min(now - stats.waiting_since_ns, most - wait);
  return Seconds(wait);
}

std::string Describe(const Departure& departure) {
  switch (departure.reason) {
    case DepartureReason::kBye:
      return "closed by its client";
    case DepartureReason::kHungUp:
      return "its lifeline hung up";
    case DepartureReason::kProcessEnded:
      return "its process ended";
    case DepartureReason::kNeverCame:
      return "its lifeline never came";
    case DepartureReason::kCancelled:
      return "its client hung up while opening it";
    case DepartureReason::kDaemonStops:
      return "the daemon ends";
    case DepartureReason::kNotServed:
      return departure.error.ToString();
    case DepartureReason::kLeft:
    case DepartureReason::kEvicted:
      break;
  }
  return departure.error.message();
}

}  // namespace

size_t SessionTable::CountLocked(std::optional<uid_t> user) const {
  size_t all = 0;
  size_t left = 0;
  for (const auto& [id, session] : sessions_) {
    if (user && session->peer.uid != *user) continue;
    ++all;
    // On an exclusive feed, a session that left counts: its client had no need to leave, and its memory
    // stays.
    if (session->is_shared() && MayHold(*session)) ++left;
  }
  return std::max(all - left, all / 2);
}

Status SessionTable::CheckRoomLocked(uid_t user, bool replaces) const {
  RETURN_IF_ERROR(CheckOpenLocked());
  const uint64_t leaving = replaces ? 1 : 0;
  if (const size_t open = CountLocked({}); open >= limit() + leaving) {
    return ResourceExhausted(
        "open a feed: " + std::to_string(open) +
        " sessions are open, which is max_sessions; close one (`pinfeed status` lists them), "
        "or have the operator raise max_sessions");
  }
  if (const size_t has = CountLocked(user); has >= max_per_user_ + leaving) {
    return ResourceExhausted(
        "user_sessions: user " + std::to_string(user) + " has " + std::to_string(has) +
        " sessions, and a user may have " + std::to_string(max_per_user_) +
        "; close one (`pinfeed status` lists them), or have the operator raise user_sessions");
  }
  return OkStatus();
}

Status SessionTable::CheckRoom(uid_t user, uint32_t group_size, bool replaces) const {
  if (group_size > max_per_user_) {
    return InvalidArgument("group_size: the feed would wait for " + std::to_string(group_size) +
                           " sessions of one user, who may have " + std::to_string(max_per_user_) +
                           " (user_sessions)");
  }
  if (const uint32_t most = limit(); group_size > most) {
    return InvalidArgument("group_size: the feed would wait for " + std::to_string(group_size) +
                           " sessions, and max_sessions of this daemon is " + std::to_string(most));
  }
  const MutexLock lock(mutex_);
  return CheckRoomLocked(user, replaces);
}

Status SessionTable::Admit(const std::shared_ptr<Session>& session, bool replaces) {
  const Backend backend = session->arena().backend();
  {
    const MutexLock lock(mutex_);
    RETURN_IF_ERROR(CheckRoomLocked(session->peer.uid, replaces));
    session->id = ++counts_.opened;
    session->pages->set_session(session->id);
    // Its client maps what the answer names; a descriptor goes out with the welcome only.
    session->mapped = session->arena().fd() < 0;
    sessions_.emplace(session->id, session);
    ++users_[session->peer.uid];
    if (!session->fallback.empty())
      ++(backend == Backend::kHost ? counts_.fallbacks.host : counts_.fallbacks.cuda_ipc);
  }
  const LogScope scope(ContextOf(*session));
  static LogPace pace(kLinesASecond);
  if (const auto more = pace.Admit()) {
    spdlog::info("{}: opened on feed {}, by {}{}", Describe(*session), session->feed->id(),
                 BackendName(backend), *more);
  }
  if (!session->fallback.empty())
    spdlog::warn("{}: falls back to {}: {}", Describe(*session), BackendName(backend), session->fallback);
  return OkStatus();
}

void SessionTable::Close() {
  const MutexLock lock(mutex_);
  closed_ = true;
}

Status SessionTable::CheckOpen() const {
  const MutexLock lock(mutex_);
  return CheckOpenLocked();
}

Status SessionTable::CheckOpenLocked() const {
  if (closed_) return Unavailable("open a feed: the daemon is shutting down; try again when it is back");
  return OkStatus();
}

std::shared_ptr<Session> SessionTable::FindByToken(const uint8_t (&token)[kTokenBytes]) const {
  const MutexLock lock(mutex_);
  std::shared_ptr<Session> found;
  for (const auto& [id, session] : sessions_)  // no early exit, so that the time reveals nothing
    if (TokensEqual(session->token, token)) found = session;
  return found;
}

Status SessionTable::Attach(Session& session) {
  RETURN_IF_ERROR(session.feed->Attach(session));
  session.served = true;
  session.mapped = true;
  session.state = SessionState::kAttached;
  return OkStatus();
}

SessionTable::Departed SessionTable::Depart(const std::shared_ptr<Session>& session,
                                            const Departure& departure) {
  const DepartureReason reason = departure.reason;
  const bool attached = session->state == SessionState::kAttached;
  const LogScope scope(ContextOf(*session));
  if (reason == DepartureReason::kHungUp || reason == DepartureReason::kLeft) {
    if (!attached) return {};
    session->state = reason == DepartureReason::kLeft ? SessionState::kLeft : SessionState::kOrphaned;
    // Nobody else's batches go into the slots of an exclusive feed, so that its client may reconnect.
    const size_t kept =
        session->table.Depart(*session, {.reason = reason,
                                         .error = departure.error,
                                         .keeps_taken = departure.keeps_taken || session->is_shared()});
    if (AllLeft()) on_left_();
    return {.ended = false, .kept = kept};
  }
  if (reason == DepartureReason::kEvicted && attached) {
    const size_t kept = session->table.Depart(*session, departure);
    if (kept > 0 && session->is_shared()) {  // an exclusive feed ends, and its client keeps the memory
      session->state = SessionState::kEvicted;
      spdlog::info(
          "{}: {}; batches of its group that it holds until it releases them or its process ends: {}",
          Describe(*session), departure.error.message(), kept);
      if (AllLeft()) on_left_();
      return {.ended = false, .kept = kept};
    }
  }
  bool all_left = false;
  {
    const MutexLock lock(mutex_);
    if (sessions_.erase(session->id) == 0) return {.ended = true};
    session->state = SessionState::kEnded;  // others may still refer to it
    ++counts_.closed;
    if (const auto user = users_.find(session->peer.uid); --user->second == 0) users_.erase(user);
    all_left = AllLeftLocked();
  }
  if (reason == DepartureReason::kBye || reason == DepartureReason::kCancelled) session->mapped = false;
  session->table.Depart(*session, {.reason = reason, .error = departure.error, .keeps_taken = false});
  static LogPace pace(kLinesASecond);
  if (const auto more = pace.Admit())
    spdlog::info("{}: ended: {}{}", Describe(*session), Describe(departure), *more);
  if (all_left) on_left_();
  return {.ended = true};
}

std::vector<std::shared_ptr<Session>> SessionTable::All() const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Session>> all;
  for (const auto& [id, session] : sessions_) all.push_back(session);
  return all;
}

std::shared_ptr<Session> SessionTable::Find(uint64_t id) const {
  const MutexLock lock(mutex_);
  const auto session = sessions_.find(id);
  return session == sessions_.end() ? nullptr : session->second;
}

bool SessionTable::AllLeftLocked() const {
  return std::ranges::all_of(sessions_, [](const auto& entry) { return HasLeft(*entry.second); });
}

bool SessionTable::AllLeft() const {
  const MutexLock lock(mutex_);
  return AllLeftLocked();
}

SessionTable::Counts SessionTable::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

std::map<uid_t, uint32_t> SessionTable::by_user() const {
  const MutexLock lock(mutex_);
  return users_;
}

void SessionTable::AddTo(std::vector<FeedReport>& feeds) const {
  std::map<uint64_t, FeedReport*> reports;  // by feed id
  for (FeedReport& report : feeds) reports.emplace(report.feed.id, &report);
  for (const std::shared_ptr<Session>& session : All()) {
    const auto feed = reports.find(session->feed->id());
    if (feed == reports.end() || session->state == SessionState::kEnded) continue;
    const ControlPages::ClientStats stats = session->pages->Stats();
    SessionSnapshot out;
    out.id = session->id;
    out.pid = session->peer.pid;
    out.uid = session->peer.uid;
    out.client_name = EscapeUnprintable(session->client_name);
    out.backend = BackendName(session->arena().backend());
    out.fallback = session->fallback;
    out.state = SessionStateName(session->state);
    out.batches_published = session->pages->published();
    out.batches_taken = std::min(stats.taken, out.batches_published);
    out.batches_copied = std::min(stats.copied, out.batches_taken);
    out.wait_seconds = WaitSeconds(stats, std::chrono::steady_clock::now() - session->opened);
    const ParticipantSnapshot now = session->feed->SnapshotOf(*session);
    out.slots_lent = now.slots_lent;
    const uint64_t untaken = out.batches_published - out.batches_taken;
    out.slots_held = now.slots_lent;
    if (!HasLeft(*session))  // else it has no others
      out.slots_held -= static_cast<uint32_t>(std::min<uint64_t>(untaken, now.slots_lent));
    out.ignored_releases = now.ignored_releases;
    out.oldest_lease_seconds = Seconds(now.oldest_lease_ns);
    out.stall_ns = now.stall_ns;
    out.recent = now.recent;
    feed->second->sessions.push_back(std::move(out));
  }
}

}  // namespace pinfeed
