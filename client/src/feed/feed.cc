// SPDX-License-Identifier: Apache-2.0
#include "client/src/feed/feed.h"

#include <utility>

#include "client/src/base/client_log.h"
#include "client/src/feed/producer.h"
#include "common/spec/names.h"

namespace pinfeed {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// How long to sleep before checking that the daemon lives: a killed daemon changes no futex word.
constexpr std::chrono::milliseconds kSlice{50};
// A caller that comes back later did not wait meanwhile.
constexpr std::chrono::seconds kPauseOfCalls{1};

uint64_t Nanoseconds(SteadyTime time) {
  return static_cast<uint64_t>(nanoseconds(time.time_since_epoch()).count());
}

// Whether a retry may succeed with the same spec: the daemon is away, or has not yet reclaimed the lost
// session's memory.
bool IsTransient(Code code) {
  return code == Code::kUnavailable || code == Code::kDeadlineExceeded || code == Code::kResourceExhausted ||
         code == Code::kAborted || code == Code::kCancelled || code == Code::kUnknown;
}

}  // namespace

Result<std::unique_ptr<Feed>> Feed::Open(FeedOptions options) {
  std::unique_ptr<Feed> feed(new Feed(std::move(options)));
  ASSIGN_OR_RETURN(std::shared_ptr<Session> session, feed->opener_.OpenFirst());
  feed->Adopt(std::move(session));
  return feed;
}

Feed::~Feed() {
  if (in_creator_process() && session_ != nullptr) session_->End();
}

Status Feed::Connect(const Cursor& cursor) {
  ASSIGN_OR_RETURN(std::shared_ptr<Session> session, opener_.Open(cursor, offer_));
  Adopt(std::move(session));
  return OkStatus();
}

void Feed::Adopt(std::shared_ptr<Session> session) {
  SetSession(std::move(session));
  offer_ = session_->offer();
  if (constants_.fingerprint.empty()) {
    constants_ = {offer_.fingerprint, std::move(offer_.classes), std::move(offer_.left_out),
                  DecodeText(offer_.decode, offer_.gpu_share),
                  session_->decoded() != nullptr ? opener_.decoder() : ""};
  }
  cursor_ = offer_.start;
  at_epoch_start_ = cursor_.position == 0;
  epoch_ahead_ = cursor_.epoch;
  final_error_ = OkStatus();
  waited_until_ = {};
}

std::shared_ptr<Session> Feed::SetSession(std::shared_ptr<Session> session) {
  const MutexLock lock(invite_mutex_);
  invite_session_ = session.get();
  return std::exchange(session_, std::move(session));
}

Result<std::string> Feed::InviteProducer(uint32_t lane) const {
  FeedOffer offer;
  {
    const MutexLock lock(invite_mutex_);
    if (invite_session_ == nullptr || invite_session_->HungUp() ||
        invite_session_->pages().state() == FeedState::kDraining)
      return Unavailable("the feed has no daemon now; invite again once it has reconnected");
    offer = invite_session_->offer();
  }
  return InvitationTo(offer, lane);  // without the lock: it may wait for a fork
}

Result<Batch*> Feed::Next(std::optional<nanoseconds> timeout) {
  std::optional<Deadline> deadline;  // set, and the clock read, only if no batch is ready
  for (;;) {
    ASSIGN_OR_RETURN(Batch* const batch, Look());
    if (batch != nullptr) return batch;
    if (!deadline) deadline.emplace(timeout);
    RETURN_IF_ERROR(session_ != nullptr ? WaitForChange(*deadline) : Reconnect(*deadline));
  }
}

Result<Batch*> Feed::Look() {
  RETURN_IF_ERROR(final_error_);
  if (session_ == nullptr) return nullptr;
  Result<Batch*> batch = TakeReady();
  if (!batch.ok()) final_error_ = batch.status();
  return batch;
}

Result<Batch*> Feed::TakeReady() {
  BatchDescriptor descriptor;
  // What an evicted session has not taken, it may not take: Take finds out.
  if (session_->HasOwnStep() && session_->pages().state() != FeedState::kEvicted) {
    if (!session_->HasNext()) return nullptr;
    if (const DecodedBatches* const decoded = session_->decoded()) {
      Result<DecodeRing::Outcome> outcome = decoded->OutcomeOf(session_->pages().next());
      // The slots of an evicted session may be others' by now.
      const bool evicted = session_->pages().state() == FeedState::kEvicted;
      if (!outcome.ok() && !evicted) return outcome.status();
      if (outcome.ok() && !outcome->zeroed.empty()) warnings_.ImagesAreZeroed(*outcome);
    }
  }
  ASSIGN_OR_RETURN(const bool taken, session_->pages().Take(&descriptor));
  if (!taken) return nullptr;
  session_->Pin(descriptor.slot);
  Advance(descriptor);
  // Returned also if it is empty: otherwise, this rank would have fewer batches than the others.
  warnings_.SamplesAreBad(descriptor);
  return BatchPool::Process().Take(session_, descriptor);
}

void Feed::Advance(const BatchDescriptor& batch) {
  waited_until_ = {};
  cursor_.epoch = batch.epoch;
  cursor_.position = batch.position;
  at_epoch_start_ = (batch.flags & kFlagLastOfEpoch) != 0;
  epoch_ahead_ = batch.epoch + 1;
}

// Returns OK if a batch may be ready or the session was lost; the caller checks again.
Status Feed::WaitForChange(const Deadline& deadline) {
  SessionPages& pages = session_->pages();
  if (pages.state() != FeedState::kEvicted && session_->IsAheadOfGpu()) {  // which is no wait for the feed
    if (deadline.Passed())
      return {Code::kDeadlineExceeded,
              "no batch was written in time: the GPU has yet to execute what its stream had before"};
    session_->AwaitGpu(deadline.AtMost(kSlice));
    return OkStatus();
  }
  const SteadyTime began = steady_clock::now();
  if (began - waited_until_ > kPauseOfCalls) waiting_since_ = began;
  pages.BeginWait(Nanoseconds(began));
  Status result = AwaitChange(deadline);
  if (session_ == nullptr) return result;  // it was lost, and its pages with it
  waited_until_ = steady_clock::now();
  pages.EndWait(Nanoseconds(waited_until_) - Nanoseconds(began));
  return result;
}

// The wait itself. The daemon knows of it.
Status Feed::AwaitChange(const Deadline& deadline) {
  SessionPages& pages = session_->pages();
  const auto late = [](const char* why) { return Status(Code::kDeadlineExceeded, why); };
  for (bool first = true;; first = false) {
    const uint32_t seen = pages.WakeWord();
    // Before looking for a batch, so that batches published earlier are visible.
    const FeedState state = pages.state();
    if (state == FeedState::kEvicted && !pages.KnowsLimit()) {
      if (deadline.Passed()) return late("no batch was ready in time: the daemon is evicting this feed");
      pages.AwaitLimit(steady_clock::now() + deadline.AtMost(kSlice));
      continue;
    }
    if (session_->HasNext() || (state != FeedState::kEvicted && session_->IsAheadOfGpu())) return OkStatus();
    // The next batch is being decoded.
    if (session_->decoded() != nullptr && pages.HasNext() && state != FeedState::kEvicted) {
      if (deadline.Passed()) return late("no batch was ready in time: the GPU decodes its images");
      session_->decoded()->AwaitDecoded(pages.next(), deadline.AtMost(kSlice));
      warnings_.DecoderIsSlow(steady_clock::now() - waiting_since_, pages.held());
      continue;
    }
    if (state == FeedState::kFailed || state == FeedState::kEvicted) return final_error_ = pages.Failure();
    if (state == FeedState::kEnded) return {Code::kOutOfRange, "the feed's last epoch has ended"};
    if (state == FeedState::kDraining) {
      // The daemon must not wait for held batches: a trainer may hold the last one until the next arrives.
      if (pages.held() > 0) session_->HangUp();
      LoseSession("the daemon is stopping; everything it published was taken");
      return OkStatus();
    }
    if (state != FeedState::kRunning) {
      return final_error_ = Internal("the daemon set the unknown state " +
                                     std::to_string(static_cast<uint32_t>(state)) + " on this feed");
    }
    if ((!first || deadline.Passed()) && session_->HungUp()) {
      if (pages.HasNext()) return OkStatus();  // published between the check and the end
      LoseSession("the daemon is gone; everything it published was taken");
      return OkStatus();
    }
    if (deadline.Passed())
      return late("no batch was ready in time; `pinfeed status` says what the feed waits for");
    pages.Sleep(seen, deadline.AtMost(kSlice));
    const nanoseconds waited = steady_clock::now() - waiting_since_;
    PassOnLog();
    warnings_.MayHoldAll(waited, pages.held(), offer_.slot_count);
    if (!offer_.gathers_requests)
      warnings_.NoBatchComes(waited, opener_.address(), offer_.read_only ? pages.held() : 0);
  }
}

void Feed::CountCopied() {
  if (session_ != nullptr) session_->pages().CountCopied();
}

void Feed::LoseSession(const std::string& reason) {
  ClientLog(PF_LOG_WARNING,
            reason + " (" + opener_.address() + ")" + (reconnection_.Tries() ? "; reconnecting" : ""));
  SetSession(nullptr);
  reconnection_.Begin();
}

// Makes one attempt, however little time is left. Returns OK if another may follow; the caller checks again.
Status Feed::Reconnect(const Deadline& deadline) {
  if (!reconnection_.Due()) {
    RETURN_IF_ERROR(reconnection_.CheckTimeout());
    return reconnection_.Wait(deadline);
  }
  const Cursor goal = cursor_;
  Status tried = Connect(goal);
  if (tried.ok()) {
    ++reconnects_;
    ClientLog(PF_LOG_WARNING, "reconnected to the daemon at " + opener_.address() + " after " +
                                  Seconds(reconnection_.away()) + "; going on at epoch " +
                                  std::to_string(cursor_.epoch) + ", position " +
                                  std::to_string(cursor_.position));
    return OkStatus();
  }
  if (!IsTransient(tried.code()))
    return final_error_ = tried.WithContext("reconnect to the daemon at " + opener_.address());
  warnings_.NotReconnected(reconnection_.away(), opener_.address(), tried);
  reconnection_.Failed(std::move(tried));
  return reconnection_.CheckTimeout();
}

bool Feed::IsReplaceable() const {
  // Of a daemon that was killed, only the lifeline tells: the session's state stays what it was.
  if (session_ == nullptr || !final_error_.ok() || !offer_.replaceable || session_->HungUp()) return false;
  const FeedState state = session_->pages().state();
  return state == FeedState::kRunning || state == FeedState::kEnded;
}

Status Feed::Seek(const Cursor& cursor) {
  // At this position already, the prefetched batches are the right ones.
  if (session_ != nullptr && final_error_.ok() && cursor == cursor_) return OkStatus();
  // Returns an eviction before opening another session; otherwise the caller would never see it.
  if (session_ != nullptr && final_error_.ok() && session_->pages().state() == FeedState::kEvicted)
    return final_error_ = session_->pages().Failure();
  if (IsReplaceable()) {
    // If the daemon refuses, or something else fails, the old session is unchanged.
    ASSIGN_OR_RETURN(std::shared_ptr<Session> replacement, opener_.Replace(cursor, offer_));
    if (replacement != nullptr) {
      const std::shared_ptr<Session> old = session_;
      Adopt(std::move(replacement));
      old->End();
      return OkStatus();
    }
  }
  // First, so that its memory is free for the new session.
  uint32_t held = 0;  // by the trainer, of that session
  if (const std::shared_ptr<Session> ended = SetSession(nullptr)) {
    ended->End();
    held = ended->pages().held();
  }
  Status connected = Connect(cursor);
  if (connected.ok()) return OkStatus();
  if (held > 0 && connected.code() == Code::kResourceExhausted) {
    connected =
        ResourceExhausted(connected.message() + "; " + std::to_string(held) +
                          " batches of this feed that are still held keep its memory: release them first "
                          "(in Python also the loop's variable: del batch), or use fewer slots");
  }
  const bool away = connected.code() == Code::kUnavailable || connected.code() == Code::kDeadlineExceeded;
  if (away && reconnection_.Tries()) {  // as if the daemon had been lost a moment later
    LoseSession("the daemon cannot be reached: " + connected.message());
    cursor_ = cursor;
    at_epoch_start_ = cursor_.position == 0;
    epoch_ahead_ = cursor_.epoch;
    final_error_ = OkStatus();
    return OkStatus();
  }
  // A daemon that refused the position is reachable. An earlier final error stays.
  const Cursor old = cursor_;
  if (!IsTransient(connected.code()) && final_error_.ok() && Connect(old).ok()) return connected;
  reconnection_.Begin();
  reconnection_.Failed(connected);
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
