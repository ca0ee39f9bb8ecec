// SPDX-License-Identifier: Apache-2.0
// The running daemon: signals, operator requests, GPU failures, and shutdown.
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <optional>

#include "common/base/log.h"
#include "common/base/quote.h"
#include "server/config/reload.h"
#include "server/daemon/daemon.h"
#include "server/daemon/daemon_parts.h"
#include "server/daemon/host_check.h"
#include "server/daemon/startup_path_check.h"
#include "server/daemon/startup_signal_watcher.h"

namespace pinfeed {
namespace {

// After a GPU failure, trainers on other GPUs get this long to leave. The limit keeps the wait for the next
// daemon short. The daemon also waits for a metrics scrape to report the failure; deploy/prometheus scrapes
// every 15 s.
constexpr std::chrono::milliseconds kMaxAfterFailure(30000);
constexpr std::chrono::seconds kShowFailure(20);
constexpr std::chrono::milliseconds kAnswerTime(500);  // to send the response to that scrape
// For a reload or a startup check in progress at shutdown. It takes milliseconds, unless its storage hangs.
constexpr std::chrono::milliseconds kReloadGrace(500);

std::string Joined(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : "; ") + item;
  return text;
}

}  // namespace

void Daemon::Wake() const {
  const uint64_t one = 1;
  // Fails only when the counter is full, which wakes the thread anyway.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void Daemon::OnGpuFailure(const Status& failure) {
  {
    const MutexLock lock(failure_mutex_);
    if (failure_.ok()) failure_ = failure;
  }
  broken_ = true;
  BeginDrain();
  // Close now rather than on the main thread: trainers are about to be told to leave and must not reconnect
  // to this daemon. Before the announcement there are no sessions. Copies end before the session table is
  // destroyed.
  if (announced_) parts_->sessions->Close();
  spdlog::error("{}; this process can no longer use the GPU: it drains and ends, and must be restarted",
                failure.message());
  Wake();
}

Status Daemon::failure() const {
  const MutexLock lock(failure_mutex_);
  return failure_;
}

Daemon::Clock::time_point Daemon::CheckProgress() {
  constexpr auto kNever = std::chrono::milliseconds::max();
  const auto watchdog = service_.watchdog_interval();
  const auto interval = std::min(watchdog.value_or(kNever), parts_->progress->interval());
  if (interval == kNever) return Clock::time_point::max();
  const Clock::time_point now = Clock::now();
  if (now < progress_checked_at_ + interval) return progress_checked_at_ + interval;
  progress_checked_at_ = now;
  if (parts_->progress->Stuck().empty() && watchdog) service_.FeedWatchdog();
  return now + interval;
}

std::string Daemon::SampleName(uint64_t feed_id, uint64_t sample) const {
  for (const std::shared_ptr<Feed>& feed : parts_->feeds.All()) {
    if (feed->id() != feed_id || sample >= feed->dataset().samples) continue;
    return feed->producer().Describe(sample);
  }
  return {};
}

void Daemon::WaitOnce(Clock::time_point until) {
  int timeout_ms = -1;
  if (until = std::min({until, CheckProgress(), reloader_.CheckTimeout()});
      until != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, INT_MAX));
  }
  const bool watch_lifetime = lifetime_ && !lifetime_over_;
  std::array<pollfd, 3> waits = {pollfd{signals_.get(), POLLIN, 0},
                                 pollfd{watch_lifetime ? lifetime_.get() : -1, POLLIN, 0},
                                 pollfd{wake_.get(), POLLIN, 0}};
  if (::poll(waits.data(), waits.size(), timeout_ms) <= 0) return;  // EINTR: a debugger
  if (waits[1].revents != 0 && HasHungUp(lifetime_.get())) {
    spdlog::info("the process this daemon serves has ended");
    lifetime_over_ = true;
  }
  if (waits[2].revents != 0) {
    uint64_t events = 0;
    [[maybe_unused]] const ssize_t bytes = ::read(wake_.get(), &events, sizeof events);
    requests_.RunAll();
  }
  if (waits[0].revents != 0) OnSignal();
}

void Daemon::OnSignal() {
  signalfd_siginfo signal{};
  if (::read(signals_.get(), &signal, sizeof signal) != sizeof signal) return;
  const std::string who = "pid " + std::to_string(signal.ssi_pid);
  if (signal.ssi_signo == SIGHUP) {
    RequestReload("SIGHUP of " + who, nullptr);  // logs the outcome
    return;
  }
  spdlog::info("signal {} from {}: {}", signal.ssi_signo, who, ending() ? "ending at once" : "draining");
  ++stop_requests_;
}

Status Daemon::Run() {
  if (reload_missed_) RequestReload("SIGHUP during startup", nullptr);
  // A private daemon allows every path, and nobody reads its log.
  std::optional<StartupPathCheck> path_check;
  if (!command_line_.private_mode) path_check.emplace(command_line_);
  while (!ending()) WaitOnce(Clock::time_point::max());
  reloader_.Stop();
  const Status failed = failure();
  service_.Stopping(failed.ok() ? "draining" : "draining for a restart: " + failed.message(),
                    std::max(drain_timeout_.load(), kMaxAfterFailure) + kStopGrace);
  parts_->health->SetServing(false);
  BeginDrain();
  parts_->sessions->Close();
  parts_->feeds.DrainAll();
  if (!lifetime_over_) {
    AwaitClients();
    if (!parts_->sessions->AllLeft())
      spdlog::warn("some sessions are still open; the daemon stops without them");
  }
  Stop();
  const Clock::time_point deadline = Clock::now() + kReloadGrace;
  if (!reloader_.Finish(deadline)) hangs_ = true;
  if (path_check && !path_check->Finish(deadline)) hangs_ = true;
  spdlog::info("pinfeedd ends");
  return failure();
}

void Daemon::AwaitClients() {
  const Clock::time_point began = Clock::now();
  const int requests_before = stop_requests_;
  std::optional<Clock::time_point> shown_at;
  while (stop_requests_ == requests_before && !lifetime_over_) {
    const Clock::time_point now = Clock::now();
    const auto limit = broken_ ? std::min(drain_timeout_.load(), kMaxAfterFailure) : drain_timeout_.load();
    if (failure_shown_ && !shown_at) shown_at = now + kAnswerTime;
    const Clock::time_point shown =
        !broken_ || !parts_->http
            ? began
            : std::min(shown_at.value_or(Clock::time_point::max()), began + kShowFailure);
    const bool left = parts_->sessions->AllLeft() || now >= began + limit;
    if (left && now >= shown) return;
    WaitOnce(left ? shown : began + limit);
  }
}

void Daemon::BeginDrain() {
  Clock::rep none = kNotDraining;
  drain_began_.compare_exchange_strong(none, Clock::now().time_since_epoch().count());
}

void Daemon::RequestReload(const std::string& who, Reloader::OnReloaded done) {
  if (!ending()) {
    reloader_.Request(who, std::move(done));
  } else if (done) {
    done(FailedPrecondition("reload the configuration: the daemon is stopping"));
  }
}

Reloader::Parts Daemon::MakeReloaderParts() {
  return {
      .main = requests_,
      .make_load = [this]() -> Reloader::Load {
        return [read = read_config_, running = command_line_](const Reloader::AtStep& at) {
          return LoadConfig(read, running, at);
        };
      },
      .adopt = [this](const std::string& who, const LoadedConfig& loaded) { return Adopt(who, loaded); },
      .outcome = [this](bool good) { config_good_ = good; },
      .begun = [this] { service_.Reloading(); },
      .ready = [this](const std::string& remark) { service_.Ready(ServingText() + remark); },
  };
}

ReloadReport Daemon::Adopt(const std::string& who, const LoadedConfig& loaded) {
  Reload reload = MergeReloaded(command_line_, loaded.command_line);
  command_line_ = std::move(reload.next);
  Apply(command_line_.config);
  if (loaded.identity && parts_->admin_access) {
    WarnIfNotValidNow(command_line_.config, *loaded.identity);
    const std::string until = UtcText(loaded.identity->valid_until);
    if (parts_->admin_access->SetIdentity(*loaded.identity))
      reload.changed.push_back("admin endpoint: the certificates were reloaded; its own is valid until " +
                               until);
  }
  config_at_ = std::chrono::system_clock::now();
  spdlog::info("{}: the configuration was loaded: {}", who,
               reload.changed.empty() ? "nothing changed" : Joined(reload.changed));
  if (!reload.need_restart.empty())
    spdlog::warn("takes effect only after a restart: {}", Joined(reload.need_restart));
  for (const std::string& warning : loaded.warnings) spdlog::warn("{}", warning);
  return {std::move(reload.changed), std::move(reload.need_restart), loaded.warnings};
}

// Applies the keys that server/config/reload.cc lists as live.
void Daemon::Apply(const Config& config) {
  users_.Set(config.allowed_uids);
  parts_->datasets->cache.SetOptions({config.datasets, config.allowed_roots, config.dataset_cache});
  parts_->sessions->SetLimit(config.max_sessions);
  parts_->progress->SetLimit(config.stuck_timeout);
  drain_timeout_ = config.drain_timeout;
  if (parts_->admin_access) parts_->admin_access->SetClients(config.admin_clients);
  if (const Status set = SetLogLevel(config.log_level); !set.ok()) spdlog::error("{}", set.message());
}

OperatorCalls Daemon::MakeOperatorCalls() {
  const auto stopped = [] { return Unavailable("the daemon has stopped"); };
  OperatorCalls calls;
  calls.drain = [this, stopped](const std::string& who) -> Status {
    const bool taken = requests_.Submit([this, who] {
      if (ending()) return;  // a second request would end the drain at once
      spdlog::info("{}: draining", who);
      ++stop_requests_;
    });
    return taken ? OkStatus() : stopped();
  };
  calls.reload = [this, stopped](const std::string& who, const OperatorCalls::OnReloaded& done) {
    if (!requests_.Submit([this, who, done] { RequestReload(who, done); })) done(stopped());
  };
  calls.drain_timeout = [this] { return drain_timeout_.load(); };
  return calls;
}

}  // namespace pinfeed
