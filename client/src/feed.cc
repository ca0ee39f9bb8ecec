// SPDX-License-Identifier: Apache-2.0
#include "client/src/feed.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <thread>
#include <utility>

#include "client/src/client_log.h"
#include "common/spec/names.h"

namespace pinfeed {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// How long to sleep before checking that the daemon lives: a killed daemon changes no futex word.
constexpr std::chrono::milliseconds kSlice{50};
constexpr std::chrono::seconds kWarnAfter{1};
constexpr std::chrono::seconds kWarnPause{30};
constexpr std::chrono::seconds kReplacePatience{2};
// A connection that closes without an answer means that the daemon ended or refuses this user. A daemon that
// ends causes at most two: an accepted connection and a queued one. So the third is a refusal.
constexpr int kMaxEndings = 3;

uint64_t Nanoseconds(SteadyTime time) {
  return static_cast<uint64_t>(nanoseconds(time.time_since_epoch()).count());
}

std::string Seconds(nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count() / 1000.0)
             .substr(0, 5) +
         " s";
}

// Whether a retry may succeed with the same spec: the daemon is away, or has not yet reclaimed the lost
// session's memory.
bool IsTransient(Code code) {
  return code == Code::kUnavailable || code == Code::kDeadlineExceeded || code == Code::kResourceExhausted ||
         code == Code::kAborted || code == Code::kCancelled || code == Code::kUnknown;
}

}  // namespace

// The deadline of one Next call.
struct Feed::Deadline {
  std::optional<SteadyTime> at;

  explicit Deadline(std::optional<nanoseconds> timeout) {
    const SteadyTime now = steady_clock::now();
    if (timeout && *timeout < SteadyTime::max() - now) at = now + *timeout;
  }
  bool Passed() const { return at && steady_clock::now() >= *at; }
  nanoseconds AtMost(nanoseconds time) const {
    return at ? std::clamp<nanoseconds>(*at - steady_clock::now(), nanoseconds(0), time) : time;
  }
};

Result<std::unique_ptr<Feed>> Feed::Open(FeedOptions options) {
  std::unique_ptr<Feed> feed(new Feed(std::move(options)));
  RETURN_IF_ERROR(feed->ConnectFirst());
  return feed;
}

Status Feed::ConnectFirst() {
  const SteadyTime deadline = steady_clock::now() + options_.open_timeout;
  Backoff backoff;
  int endings = 0;
  // If the daemon said that it is stopping, a closed or refused connection is no final answer.
  bool stops = false;
  while (true) {
    Status tried = ConnectBy(deadline, options_.request.cursor).status();
    if (tried.code() != Code::kUnavailable) return tried;
    const bool absent = tried.native_error() == ENOENT || tried.native_error() == ECONNREFUSED;
    stops = stops || stopping_ || (absent && endings > 0);
    if (!stops && (absent || ++endings == kMaxEndings)) return tried;
    const nanoseconds left = deadline - steady_clock::now();
    if (left <= Backoff::kFirst) {
      if (!stops) return tried;
      return Unavailable("the daemon at " + options_.address + " is stopping, and no other came within " +
                         Seconds(options_.open_timeout) +
                         " (the open timeout); the last try: " + tried.message());
    }
    std::this_thread::sleep_for(std::min(backoff.Next(), left / 2));
  }
}

Feed::~Feed() {
  if (in_creator_process()) {
    if (session_ != nullptr) session_->End();
    session_.reset();
  } else {
    (void)new (std::nothrow)
        std::shared_ptr<const void>(std::move(options_.gpu));  // the context belongs to the parent process
  }
}

// Tries each backend with a real arena. A backend that does not work on this machine is reported to the
// daemon, which offers the next, unless the spec requires it. Other failures do not concern the backend and
// are returned.
Result<FeedOffer> Feed::Attach(const std::optional<Cursor>& cursor, uint64_t replaces, SteadyTime deadline) {
  OpenRequest request = options_.request;
  request.cursor = cursor;
  request.replaces_session = replaces;
  while (true) {
    request.failed_backends = failed_backends_;
    Result<FeedOffer> offered = OpenFeed(options_.address, request, deadline, &stopping_);
    if (!offered.ok()) return WithGpuError(offered.status());
    FeedOffer offer = *std::move(offered);
    if (offer.end_first) return offer;
    const bool first = offer_.layout.tensors.empty();
    if (!first) RETURN_IF_ERROR(CheckSameFeed(offer_, offer));
    bool backend_unusable = false;
    Result<std::shared_ptr<Session>> session = Session::Attach(offer, device_, deadline, &backend_unusable);
    if (session.ok()) {
      session_ = *std::move(session);
      return offer;
    }
    const bool again = std::any_of(failed_backends_.begin(), failed_backends_.end(),
                                   [&](const auto& failed) { return failed.first == offer.backend; });
    if (!backend_unusable || !offer.host_acceptable || !first || again) return session.status();
    failed_backends_.emplace_back(offer.backend, session.status().message());
  }
}

Status Feed::WithGpuError(const Status& refused) const {
  if (options_.gpu_error.ok() || refused.code() != Code::kFailedPrecondition) return refused;
  return {refused.code(),
          refused.message() + "; this process cannot use the GPU: " + options_.gpu_error.message()};
}

void Feed::WarnOfFallback(const FeedOffer& offer) const {
  if (offer.fallback.empty()) return;
  const std::string where = offer.backend == Backend::kHost
                                ? "in host memory, not on GPU " + std::to_string(device_)
                                : std::string("by ") + BackendName(offer.backend) + ", not by vmm-fd";
  ClientLog(PF_LOG_WARNING, "batches come " + where + ": " + offer.fallback + " (the daemon at " +
                                options_.address + "); name a backend instead of auto to make this an error");
}

Result<bool> Feed::Connect(const std::optional<Cursor>& cursor, uint64_t replaces) {
  return ConnectBy(steady_clock::now() + options_.open_timeout, cursor, replaces);
}

Result<bool> Feed::ConnectBy(SteadyTime deadline, const std::optional<Cursor>& cursor, uint64_t replaces) {
  const bool first = offer_.layout.tensors.empty();
  ASSIGN_OR_RETURN(FeedOffer offer, Attach(cursor, replaces, deadline));
  if (offer.end_first) return false;
  if (first) WarnOfFallback(offer);
  offer_ = std::move(offer);
  if (fingerprint_.empty()) {
    fingerprint_ = offer_.fingerprint;
    classes_ = std::move(offer_.classes);
  }
  cursor_ = offer_.start;
  at_epoch_start_ = cursor_.position == 0;
  epoch_ahead_ = cursor_.epoch;
  final_error_ = OkStatus();
  return true;
}

Result<Batch*> Feed::Next(std::optional<nanoseconds> timeout) {
  std::optional<Deadline> deadline;  // set, and the clock read, only if no batch is ready
  for (;;) {
    RETURN_IF_ERROR(final_error_);
    if (session_ != nullptr) {
      Result<Batch*> batch = TakeReady();
      if (!batch.ok()) final_error_ = batch.status();
      if (!batch.ok() || *batch != nullptr) return batch;
    }
    if (!deadline) deadline.emplace(timeout);
    RETURN_IF_ERROR(session_ != nullptr ? WaitForChange(*deadline) : Reconnect(*deadline));
  }
}

Result<Batch*> Feed::TakeReady() {
  BatchDescriptor descriptor;
  ASSIGN_OR_RETURN(const bool taken, session_->pages().Take(&descriptor));
  if (!taken) return nullptr;
  Advance(descriptor);
  // Returned like any other batch; if it were skipped, this rank would have fewer batches than the others.
  if (descriptor.samples == 0) WarnOfEmptyBatch(descriptor);
  return BatchPool::Process().Take(session_, descriptor);
}

void Feed::WarnOfEmptyBatch(const BatchDescriptor& batch) {
  if (std::exchange(warned_of_empty_, true)) return;
  ClientLog(
      PF_LOG_WARNING,
      "batch " + std::to_string(batch.batch_index) + " of epoch " + std::to_string(batch.epoch) +
          " is empty: all its " + std::to_string(batch.skipped) +
          " samples are bad and on_bad_sample is skip. The mean of an empty tensor is NaN, and a NaN loss "
          "ruins the model at the next step: check the number of samples "
          "first. on_bad_sample zero with valid keeps every batch's size and marks the good samples. "
          "`pinfeed status --json` lists the bad samples. Further empty batches of this feed are "
          "not reported");
}

void Feed::Advance(const BatchDescriptor& batch) {
  cursor_.epoch = batch.epoch;
  cursor_.position = batch.position;
  at_epoch_start_ = (batch.flags & kFlagLastOfEpoch) != 0;
  epoch_ahead_ = batch.epoch + 1;
}

// Returns OK if a batch may be ready or the session was lost; the caller checks again.
Status Feed::WaitForChange(const Deadline& deadline) {
  const SteadyTime began = steady_clock::now();
  const uint64_t published_before = Nanoseconds(began);
  session_->pages().BeginWait(published_before);
  Status result;
  for (bool first = true;; first = false) {
    const uint32_t seen = session_->pages().WakeWord();
    const FeedState state =
        session_->pages()
            .state();  // before looking for a batch, so that batches published earlier are visible
    if (session_->pages().HasNext()) break;
    if (state == FeedState::kFailed || state == FeedState::kEvicted) {
      result = final_error_ = session_->pages().Failure();
      break;
    }
    if (state == FeedState::kEnded) {
      result = Status(Code::kOutOfRange, "the feed's last epoch has ended");
      break;
    }
    if (state == FeedState::kDraining) {
      // The daemon must not wait for held batches: a trainer may hold the last one until the next arrives.
      if (session_->pages().held() > 0) session_->HangUp();
      LoseSession("the daemon is stopping");
      return OkStatus();
    }
    if (state != FeedState::kRunning) {
      result = final_error_ = Internal("the daemon set the unknown state " +
                                       std::to_string(static_cast<uint32_t>(state)) + " on this feed");
      break;
    }
    if (!first && session_->HungUp()) {
      if (session_->pages().HasNext()) break;  // published between the check and the end
      LoseSession("the daemon is gone");
      return OkStatus();
    }
    if (deadline.Passed()) {
      result = Status(Code::kDeadlineExceeded,
                      "no batch was ready in time; `pinfeed status` says what the feed waits for");
      break;
    }
    session_->pages().Sleep(seen, deadline.AtMost(kSlice));
    WarnIfAllHeld(steady_clock::now() - began);
  }
  session_->pages().EndWait(Nanoseconds(steady_clock::now()) - published_before);
  return result;
}

void Feed::WarnIfAllHeld(nanoseconds waited) {
  if (waited < kWarnAfter || session_->pages().held() < offer_.slot_count) return;
  const SteadyTime now = steady_clock::now();
  if (now < next_warning_) return;
  next_warning_ = now + kWarnPause;
  const std::string count = std::to_string(offer_.slot_count);
  ClientLog(PF_LOG_WARNING, "no batch for " + Seconds(waited) + ": all " + count +
                                " slots are held by batches that this process "
                                "has not released, so none can be filled; release them sooner (copy what is "
                                "kept), or raise the spec's slots above " +
                                count);
}

void Feed::CountCopied() {
  if (session_ != nullptr) session_->pages().CountCopied();
}

void Feed::LoseSession(const std::string& reason) {
  ClientLog(PF_LOG_WARNING,
            reason + " (" + options_.address + "); everything it published was taken, reconnecting");
  session_.reset();
  backoff_.Reset();
  lost_at_ = next_try_ = steady_clock::now();
  last_try_ = OkStatus();
}

// Makes one attempt. Returns OK if another may follow; the caller checks again.
Status Feed::Reconnect(const Deadline& deadline) {
  if (options_.reconnect_timeout && steady_clock::now() >= lost_at_ + *options_.reconnect_timeout) {
    const std::string tried = last_try_.ok() ? "" : "; the last try: " + last_try_.message();
    // Not final: the next call tries again, since the daemon may still return.
    const auto waited = *options_.reconnect_timeout;
    lost_at_ = steady_clock::now();
    return Unavailable("the daemon at " + options_.address + " did not come back within " + Seconds(waited) +
                       tried);
  }
  // An attempt may block, so a call without time left leaves it to the next call.
  if (deadline.Passed() || steady_clock::now() < next_try_) return WaitForRetry(deadline);

  const Cursor goal = cursor_;
  last_try_ = Connect(goal).status();
  if (last_try_.ok()) {
    ++reconnects_;
    ClientLog(PF_LOG_WARNING, "reconnected to the daemon at " + options_.address + " after " +
                                  Seconds(steady_clock::now() - lost_at_) + "; going on at epoch " +
                                  std::to_string(cursor_.epoch) + ", position " +
                                  std::to_string(cursor_.position));
    return OkStatus();
  }
  if (!IsTransient(last_try_.code())) {
    final_error_ = last_try_.WithContext("reconnect to the daemon at " + options_.address);
    return final_error_;
  }
  next_try_ = steady_clock::now() + backoff_.Next();
  return OkStatus();
}

Status Feed::WaitForRetry(const Deadline& deadline) {
  nanoseconds pause = next_try_ - steady_clock::now();
  if (options_.reconnect_timeout)
    pause = std::min<nanoseconds>(pause, lost_at_ + *options_.reconnect_timeout - steady_clock::now());
  if (deadline.Passed()) {
    return Status(Code::kDeadlineExceeded,
                  "the daemon at " + options_.address + " is lost and not back yet: " + last_try_.message());
  }
  if (pause > nanoseconds(0)) std::this_thread::sleep_for(deadline.AtMost(pause));
  return OkStatus();
}

bool Feed::IsReplaceable() const {
  if (session_ == nullptr || !final_error_.ok() || !offer_.replaceable) return false;
  const FeedState state = session_->pages().state();
  return state == FeedState::kRunning || state == FeedState::kEnded;
}

Result<bool> Feed::Replace(const Cursor& cursor) {
  const SteadyTime deadline = steady_clock::now() + kReplacePatience;
  for (Backoff backoff;;) {
    Result<bool> replaced = Connect(cursor, offer_.session_id);
    // Other members of the group may be replacing their sessions too, and briefly have one more each.
    const bool full = !replaced.ok() && replaced.status().code() == Code::kResourceExhausted;
    const nanoseconds left = deadline - steady_clock::now();
    if (!full || left <= Backoff::kFirst) return replaced;
    std::this_thread::sleep_for(std::min(backoff.Next(), left / 2));
  }
}

Status Feed::Seek(const Cursor& cursor) {
  // At this position already, the prefetched batches are the right ones.
  if (session_ != nullptr && final_error_.ok() && cursor == cursor_) return OkStatus();
  // Returns an eviction before opening another session; otherwise the caller would never see it.
  if (session_ != nullptr && final_error_.ok() && session_->pages().state() == FeedState::kEvicted)
    return final_error_ = session_->pages().Failure();
  if (IsReplaceable()) {
    // If the daemon refuses, or something else fails, the old session is unchanged.
    const std::shared_ptr<Session> old = session_;
    const Result<bool> replaced = Replace(cursor);
    if (!replaced.ok()) return replaced.status();
    if (*replaced) {
      old->End();
      return OkStatus();
    }
  }
  if (session_ != nullptr) session_->End();
  session_.reset();  // first, so that its memory is free for the new session
  Status connected = Connect(cursor).status();
  if (connected.ok()) return OkStatus();
  // A daemon that refused the position is reachable. An earlier final error stays.
  const Cursor old = cursor_;
  if (!IsTransient(connected.code()) && final_error_.ok() && Connect(old).ok()) return connected;
  lost_at_ = next_try_ = steady_clock::now();
  backoff_.Reset();
  last_try_ = OkStatus();
  return connected;
}

Status Feed::SeekEpoch(uint64_t epoch) {
  if (session_ != nullptr && final_error_.ok() && at_epoch_start_ && epoch_ahead_ == epoch) return OkStatus();
  Cursor cursor = cursor_;
  cursor.epoch = epoch;
  cursor.position = 0;
  return Seek(cursor);
}

}  // namespace pinfeed
