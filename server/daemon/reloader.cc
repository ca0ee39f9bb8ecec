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
  return FailedPrecondition(std::string(kWhat) + "the daemon is on its way to its end");
}

}  // namespace

// Purpose: hands what was read to the main thread. Threads: the main thread and the one that reads.
// Invariant: nothing is delivered after Forget has returned.
class Reloader::Delivery {
 public:
  using Deliver = std::function<void(Result<LoadedConfig>)>;
  explicit Delivery(Deliver deliver) : deliver_(std::move(deliver)) {}

  void Give(Result<LoadedConfig> loaded) PF_EXCLUDES(mutex_) {
    Deliver deliver;
    {
      const MutexLock lock(mutex_);
      deliver.swap(deliver_);
      delivering_ = deliver != nullptr;
    }
    if (!deliver) return;
    deliver(std::move(loaded));
    {
      const MutexLock lock(mutex_);
      delivering_ = false;
    }
    delivered_.NotifyAll();
  }
  void Forget() PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    deliver_ = nullptr;
    while (delivering_) delivered_.Wait(mutex_);  // the owner of what it calls lives until then
  }

 private:
  Mutex mutex_;
  CondVar delivered_;
  bool delivering_ PF_GUARDED_BY(mutex_) = false;
  Deliver deliver_ PF_GUARDED_BY(mutex_);
};

std::string Reloader::Turn::Name() const {
  return more == 0 ? who : who + " and " + std::to_string(more) + " more";
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
    ++next_->more;
  } else {
    next_ = Turn{who, 0, {}};
  }
  if (done) next_->answers.push_back(std::move(done));
  if (!current_ || current_->hangs) BeginNext();
}

void Reloader::BeginNext() {
  Turn turn = *std::exchange(next_, std::nullopt);
  PruneLeft();
  if (current_ && left_.size() >= kMaxLeft) {
    Fail(turn, ResourceExhausted(kWhat + std::to_string(left_.size() + 1) + " before it hang, the last at " +
                                 current_->at.thread.step() +
                                 "; mend that storage, or restart the daemon, and reload again"));
    return;
  }
  if (current_) {
    spdlog::warn("{}: given up for the next reload", current_->turn.Name());
    current_->at.delivery->Forget();
    left_.push_back(std::move(current_->at));
    current_.reset();
  }
  const uint64_t number = ++readings_;
  try {
    Reading reading = StartReading(number);
    current_.emplace(Current{number, std::move(turn), Clock::now(), false, std::move(reading)});
  } catch (const std::system_error& error) {
    Fail(turn, ResourceExhausted(kWhat + std::string("no thread to read it: ") + error.what() +
                                 "; raise the limit of processes"));
  }
}

Reloader::Reading Reloader::StartReading(uint64_t number) {
  auto delivery = std::make_shared<Delivery>([this, number](Result<LoadedConfig> loaded) {
    (void)parts_.main.Submit([this, number, loaded = std::move(loaded)] { OnRead(number, loaded); });
  });
  AbandonableThread thread("reload", "about to read it",
                           [delivery, load = parts_.make_load()](const AtStep& at) {
                             try {
                               delivery->Give(load(at));
                             } catch (const std::exception& error) {
                               delivery->Give(ResourceExhausted(std::string(kWhat) + error.what()));
                             }
                           });
  return {std::move(delivery), std::move(thread)};
}

void Reloader::OnRead(uint64_t number, const Result<LoadedConfig>& loaded) {
  if (!current_ || current_->number != number) return;  // given up since
  Current read = *std::exchange(current_, std::nullopt);
  read.at.thread.Finish(Clock::time_point::max());  // has nothing left to do
  if (!loaded.ok()) {
    Fail(read.turn, loaded.status());
    return;
  }
  const ReloadReport report = parts_.adopt(read.turn.Name(), *loaded);
  parts_.outcome(true);
  if (next_) {
    BeginNext();
  } else {
    parts_.ready(report.need_restart.empty() ? "" : "; changes wait for a restart");
  }
  Answer(read.turn, report);
}

void Reloader::Fail(const Turn& turn, const Status& status) {
  std::istringstream faults(status.message());
  for (std::string fault; std::getline(faults, fault);)
    spdlog::error("{}: the configuration stays as it was: {}", turn.Name(), fault);
  parts_.outcome(false);
  if (next_) {
    BeginNext();
  } else {
    parts_.ready("; the configuration could not be loaded again");
  }
  Answer(turn, status);
}

Reloader::Clock::time_point Reloader::Watch() {
  if (!current_ || current_->hangs) return Clock::time_point::max();
  const Clock::time_point end = current_->since + parts_.patience;
  if (Clock::now() < end) return end;
  OnPatienceOver();
  return current_ && !current_->hangs ? current_->since + parts_.patience : Clock::time_point::max();
}

void Reloader::OnPatienceOver() {
  current_->hangs = true;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(parts_.patience).count();
  const std::string step = current_->at.thread.step();
  const Status status(Code::kDeadlineExceeded,
                      kWhat + std::string("not done after ") + std::to_string(seconds) + " s, at " + step +
                          "; does its storage answer? What is in force stays until it does, or until "
                          "another reload comes first");
  spdlog::error("{}: {}", current_->turn.Name(), status.message());
  const Turn turn = std::exchange(current_->turn, Turn{current_->turn.who, current_->turn.more, {}});
  parts_.outcome(false);
  if (next_) {
    BeginNext();
  } else {
    parts_.ready("; a reload hangs, at " + step);
  }
  Answer(turn, status);
}

void Reloader::Answer(const Turn& turn, const Result<ReloadReport>& result) {
  for (const OnReloaded& answer : turn.answers) answer(result);
}

void Reloader::PruneLeft() {
  std::erase_if(left_, [](Reading& one) { return one.thread.Finish(Clock::now()); });
}

void Reloader::Stop() {
  stopped_ = true;
  if (current_) {
    current_->at.delivery->Forget();
    left_.push_back(std::move(current_->at));
    const Turn turn = std::move(current_->turn);
    current_.reset();
    Answer(turn, Ending());
  }
  if (next_) Answer(*std::exchange(next_, std::nullopt), Ending());
}

bool Reloader::Finish(Clock::time_point deadline) {
  bool all = true;
  for (Reading& one : left_) {
    if (one.thread.Finish(deadline)) continue;
    spdlog::warn("a reload hangs, at {}; the daemon ends without waiting for it", one.thread.step());
    all = false;
  }
  left_.clear();
  return all;
}

}  // namespace pinfeed
