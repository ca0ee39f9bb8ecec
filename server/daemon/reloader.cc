// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/reloader.h"

#include <exception>
#include <sstream>
#include <system_error>
#include <utility>

#include "common/base/log.h"
#include "common/base/sync.h"

namespace pinfeed {
namespace {

constexpr const char* kWhat = "reload the configuration: ";

Status Ending() {
  return FailedPrecondition(std::string(kWhat) + "the daemon is stopping");
}

}  // namespace

// Purpose: passes the result of a read to the main thread, unless the read was abandoned.
// Threads: the main thread and the reading thread. Invariant: nothing is delivered after Cancel has returned.
class Reloader::ResultHandoff {
 public:
  using Callback = std::function<void(Result<LoadedConfig>)>;
  explicit ResultHandoff(Callback callback) : callback_(std::move(callback)) {}

  void Deliver(Result<LoadedConfig> loaded) PF_EXCLUDES(mutex_) {
    Callback callback;
    {
      const MutexLock lock(mutex_);
      callback.swap(callback_);
      delivering_ = callback != nullptr;
    }
    if (!callback) return;
    callback(std::move(loaded));
    {
      const MutexLock lock(mutex_);
      delivering_ = false;
    }
    delivered_.NotifyAll();
  }
  void Cancel() PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    callback_ = nullptr;
    while (delivering_) delivered_.Wait(mutex_);  // the callback's owner lives until then
  }

 private:
  Mutex mutex_;
  CondVar delivered_;
  bool delivering_ PF_GUARDED_BY(mutex_) = false;
  Callback callback_ PF_GUARDED_BY(mutex_);
};

std::string Reloader::PendingReload::Requesters() const {
  return others == 0 ? who : who + " and " + std::to_string(others) + " more";
}

Reloader::Reloader(Parts parts) : parts_(std::move(parts)) {}

Reloader::~Reloader() {
  Stop();
  (void)Finish(Clock::now());
}

void Reloader::Request(const std::string& who, OnReloaded done) {
  if (stopped_) {
    if (done) done(Ending());
    return;
  }
  parts_.begun();
  if (next_) {
    ++next_->others;
  } else {
    next_ = PendingReload{who, 0, {}};
  }
  if (done) next_->answers.push_back(std::move(done));
  if (!current_ || current_->timed_out) BeginNext();
}

void Reloader::BeginNext() {
  PendingReload pending = *std::exchange(next_, std::nullopt);
  JoinAbandoned();
  if (current_ && abandoned_.size() >= kMaxAbandoned) {
    Fail(pending, ResourceExhausted(kWhat + std::to_string(abandoned_.size() + 1) +
                                    " earlier reloads hang, the last at " + current_->at.thread.step() +
                                    "; repair that storage or restart the daemon, then reload again"));
    return;
  }
  if (current_) {
    spdlog::warn("{}: abandoned in favour of the next reload", current_->pending.Requesters());
    current_->at.handoff->Cancel();
    abandoned_.push_back(std::move(current_->at));
    current_.reset();
  }
  const uint64_t number = ++readings_;
  try {
    Reading reading = StartReading(number);
    current_.emplace(Current{number, std::move(pending), Clock::now(), false, std::move(reading)});
  } catch (const std::system_error& error) {
    Fail(pending, ResourceExhausted(kWhat + std::string("cannot start a thread: ") + error.what() +
                                    "; raise the limit on processes"));
  }
}

Reloader::Reading Reloader::StartReading(uint64_t number) {
  auto handoff = std::make_shared<ResultHandoff>([this, number](Result<LoadedConfig> loaded) {
    (void)parts_.main.Submit([this, number, loaded = std::move(loaded)] { OnRead(number, loaded); });
  });
  AbandonableThread thread("reload", "starting", [handoff, load = parts_.make_load()](const AtStep& at) {
    try {
      handoff->Deliver(load(at));
    } catch (const std::exception& error) {
      handoff->Deliver(ResourceExhausted(std::string(kWhat) + error.what()));
    }
  });
  return {std::move(handoff), std::move(thread)};
}

void Reloader::OnRead(uint64_t number, const Result<LoadedConfig>& loaded) {
  if (!current_ || current_->number != number) return;  // abandoned meanwhile
  Current read = *std::exchange(current_, std::nullopt);
  read.at.thread.Finish(Clock::time_point::max());  // the body has already ended
  if (!loaded.ok()) {
    Fail(read.pending, loaded.status());
    return;
  }
  const ReloadReport report = parts_.adopt(read.pending.Requesters(), *loaded);
  Conclude(read.pending, report, report.need_restart.empty() ? "" : "; some changes need a restart");
}

void Reloader::Fail(const PendingReload& pending, const Status& status) {
  std::istringstream faults(status.message());
  for (std::string fault; std::getline(faults, fault);)
    spdlog::error("{}: the configuration is unchanged: {}", pending.Requesters(), fault);
  Conclude(pending, status, "; the configuration could not be reloaded");
}

Reloader::Clock::time_point Reloader::CheckTimeout() {
  if (!current_ || current_->timed_out) return Clock::time_point::max();
  const Clock::time_point end = current_->since + parts_.timeout;
  if (Clock::now() < end) return end;
  OnTimeout();
  return current_ && !current_->timed_out ? current_->since + parts_.timeout : Clock::time_point::max();
}

void Reloader::OnTimeout() {
  current_->timed_out = true;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(parts_.timeout).count();
  const std::string step = current_->at.thread.step();
  const Status status(
      Code::kDeadlineExceeded,
      kWhat + std::string("not done after ") + std::to_string(seconds) + " s, at " + step +
          "; does its storage answer? The current configuration stays in force until it does, or "
          "until another reload succeeds");
  spdlog::error("{}: {}", current_->pending.Requesters(), status.message());
  const PendingReload pending =
      std::exchange(current_->pending, PendingReload{current_->pending.who, current_->pending.others, {}});
  Conclude(pending, status, "; a reload hangs, at " + step);
}

void Reloader::Conclude(const PendingReload& pending, const Result<ReloadReport>& result,
                        const std::string& remark) {
  parts_.outcome(result.ok());
  if (next_) {
    BeginNext();
  } else {
    parts_.ready(remark);
  }
  Answer(pending, result);
}

void Reloader::Answer(const PendingReload& pending, const Result<ReloadReport>& result) {
  for (const OnReloaded& answer : pending.answers) answer(result);
}

void Reloader::JoinAbandoned() {
  std::erase_if(abandoned_, [](Reading& one) { return one.thread.Finish(Clock::now()); });
}

void Reloader::Stop() {
  stopped_ = true;
  if (current_) {
    current_->at.handoff->Cancel();
    abandoned_.push_back(std::move(current_->at));
    const PendingReload pending = std::move(current_->pending);
    current_.reset();
    Answer(pending, Ending());
  }
  if (next_) Answer(*std::exchange(next_, std::nullopt), Ending());
}

bool Reloader::Finish(Clock::time_point deadline) {
  bool all = true;
  for (Reading& one : abandoned_) {
    if (one.thread.Finish(deadline)) continue;
    spdlog::warn("a reload hangs, at {}; the daemon exits without waiting for it", one.thread.step());
    all = false;
  }
  abandoned_.clear();
  return all;
}

}  // namespace pinfeed
