// SPDX-License-Identifier: Apache-2.0
#include "server/memory/gpu/copy_engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

using std::chrono::nanoseconds;

// A smaller copy completes faster than a sleep takes, so the thread polls for it.
constexpr uint64_t kSpinBytes = uint64_t{1} << 20;
// Reading releases takes the feeds' locks, which the workers also need.
constexpr nanoseconds kReadInterval{5'000};
constexpr nanoseconds kShortPause{20'000};
constexpr nanoseconds kLongPause{1'000'000};
// The kernel's default slack of 50 us would dominate a short pause.
constexpr unsigned long kTimerSlackNs = 1000;

}  // namespace

Result<std::unique_ptr<CopyEngine>> CopyEngine::Create(std::shared_ptr<const CudaDevice> device,
                                                       const std::string& name,
                                                       std::function<void(const Status&)> on_failure) {
  ASSIGN_OR_RETURN(std::unique_ptr<CopyStream> stream, CopyStream::Create(device));
  std::unique_ptr<CopyEngine> engine(
      new CopyEngine(std::move(device), name, std::move(on_failure), std::move(stream)));
  engine->thread_ = StartThread(engine->thread_name(), [raw = engine.get()] { raw->Run(); });
  engine->in_context_.wait();
  return engine;
}

CopyEngine::~CopyEngine() {
  queue_.Close();
  if (thread_.joinable()) thread_.join();
}

nanoseconds CopyEngine::Stalled() const {
  std::optional<Clock::time_point> since;
  if (const Clock::rep progress = last_progress_.load(std::memory_order_relaxed); progress != 0) {
    since = Clock::time_point(Clock::duration(progress));
  } else {  // the copy thread is idle: check for jobs that it has not taken
    since = queue_.WaitingSince();
  }
  return since ? Clock::now() - *since : nanoseconds(0);
}

void CopyEngine::Run() {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  const auto scope = device_->Enter();
  if (const Status& entered = scope.status(); !entered.ok()) Fail(entered);
  in_context_.count_down();
  while (true) {
    bool closed = false;
    if (stream_->HasRoom() && Begin(closed)) continue;
    if (closed && stream_->empty()) return;
    const auto now = Clock::now();
    if (now >= next_read_) {
      has_readers_ = ReadReleases();
      next_read_ = now + kReadInterval;
    }
    if (!Finish()) Pause();
  }
}

bool CopyEngine::Begin(bool& closed) {
  std::optional<CopyQueue::WaitingJob> next = queue_.Take(closed);
  if (!next) return false;
  const auto now = Clock::now();
  if (last_progress_.load(std::memory_order_relaxed) == 0)
    last_progress_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  counts_.AddQueued(now - next->since);
  if (const Status enqueued = stream_->Enqueue(next->job); !enqueued.ok()) {
    Fail(enqueued);
    next->job.done(Unavailable(enqueued.message()), {});
  }
  return true;
}

bool CopyEngine::Finish() {
  bool any = false;
  while (true) {
    Result<std::optional<CopyStream::Copied>> taken = stream_->Take();
    if (!taken.ok()) {
      Fail(taken.status());
      return true;
    }
    if (!*taken) return any;
    const CopyStream::Copied copied = std::move(**taken);
    counts_.AddCopied(copied);
    copied.job.done(OkStatus(), {Nanoseconds(copied.begin.time_since_epoch()),
                                 Nanoseconds(copied.end.time_since_epoch())});
    last_progress_.store(stream_->empty() ? 0 : copied.end.time_since_epoch().count(),
                         std::memory_order_relaxed);
    any = true;
  }
}

void CopyEngine::Fail(const Status& cause) {
  const Status error = Unavailable(cause.message());
  const std::optional<std::vector<CopyJob>> waiting = queue_.Fail(error);
  if (!waiting) return;
  counts_.AddError();
  on_failure_(error);  // called first, because the rest may be slow
  for (const CopyJob& job : *waiting) job.done(error, {});
  for (const CopyJob& job : stream_->Abandon()) job.done(error, {});
  last_progress_.store(0, std::memory_order_relaxed);
}

bool CopyEngine::ReadReleases() {
  const std::vector<std::shared_ptr<ReleaseReader>> readers = queue_.Readers();
  for (const auto& reader : readers) reader->ReadReleases();
  return !readers.empty();
}

void CopyEngine::Pause() {
  const bool copying = !stream_->empty();
  if (copying && stream_->oldest_bytes() < kSpinBytes) return;
  if (copying) pause_ = kShortPause;
  const bool idle = !copying && !has_readers_;
  if (queue_.AwaitChange(idle ? std::nullopt : std::optional(pause_))) {
    pause_ = kShortPause;
    // A reader may have been added since the last check: check again before a long sleep.
    has_readers_ = true;
  } else if (!idle) {
    pause_ = std::min(pause_ * 2, kLongPause);
  }
}

}  // namespace pinfeed
