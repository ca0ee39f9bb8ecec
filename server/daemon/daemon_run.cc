// SPDX-License-Identifier: Apache-2.0
// The running daemon: signals, operator requests, GPU failures, and shutdown.
#include <algorithm>
#include <csignal>
#include <optional>
#include <system_error>

#include "common/base/log.h"
#include "server/daemon/daemon.h"
#include "server/daemon/daemon_parts.h"
#include "server/daemon/startup_path_check.h"

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

}  // namespace

void Daemon::OnGpuFailure(const Status& failure) {
  state_.Fail(failure);
  // Close now rather than on the main thread: trainers are about to be told to leave and must not reconnect
  // to this daemon. Before the announcement there are no sessions. Copies end before the session table is
  // destroyed.
  if (state_.announced()) parts_->sessions->Close();
  spdlog::error("{}; this process can no longer use the GPU: it drains and ends, and must be restarted",
                failure.message());
  events_.Wake();
}

Daemon::Clock::time_point Daemon::CheckProgress() {
  constexpr auto kNever = std::chrono::milliseconds::max();
  const auto watchdog = service_.watchdog_interval();
  const auto interval = std::min(watchdog.value_or(kNever), parts_->progress->interval());
  if (interval == kNever) return Clock::time_point::max();
  const Clock::time_point now = Clock::now();
  if (now < progress_checked_at_ + interval) return progress_checked_at_ + interval;
  progress_checked_at_ = now;
  // Sees what was taken, from when the ages of leases count: nobody else may look at feeds that stand still.
  for (const auto& feed : parts_->feeds.All()) (void)feed->Snapshot();
  if (parts_->progress->Stuck().empty() && watchdog) service_.FeedWatchdog();
  return now + interval;
}

void Daemon::WaitOnce(Clock::time_point until) {
  const DaemonEvents::Seen seen = events_.Wait(std::min({until, CheckProgress(), reloader_.CheckTimeout()}));
  if (seen.lifetime_over) {
    spdlog::info("the process this daemon serves has ended");
    state_.EndLifetime();
  }
  if (seen.woken) requests_.RunAll();
  if (seen.signal) OnSignal(*seen.signal);
}

void Daemon::OnSignal(const DaemonEvents::Signal& signal) {
  const std::string who = "pid " + std::to_string(signal.sender);
  if (signal.number == SIGHUP) {
    RequestReload("SIGHUP of " + who, nullptr);  // logs the outcome
    return;
  }
  spdlog::info("signal {} from {}: {}", signal.number, who, state_.ending() ? "ending at once" : "draining");
  state_.RequestStop();
}

Status Daemon::Run() {
  if (reload_missed_) RequestReload("SIGHUP during startup", nullptr);
  // A private daemon allows every path, and nobody reads its log.
  std::optional<StartupPathCheck> path_check;
  try {
    if (!running_.command_line().private_mode) path_check.emplace(running_.command_line());
  } catch (const std::system_error& error) {
    spdlog::warn("the configured paths are not checked: cannot start a thread: {}", error.what());
  }
  while (!state_.ending()) WaitOnce(path_check ? path_check->CheckTimeout() : Clock::time_point::max());
  reloader_.Stop();
  const Status failed = state_.failure();
  service_.Stopping(failed.ok() ? "draining" : "draining for a restart: " + failed.message(),
                    std::max(running_.drain_timeout(), kMaxAfterFailure) + kStopGrace);
  parts_->health->SetServing(false);
  state_.BeginDrain();
  parts_->sessions->Close();
  for (const std::shared_ptr<Feed>& feed : parts_->feeds.All()) feed->Drain();
  if (!state_.lifetime_over()) {
    AwaitClients();
    if (!parts_->sessions->AllLeft())
      spdlog::warn("some sessions are still open; the daemon stops without them");
  }
  Stop();
  const Clock::time_point deadline = Clock::now() + kReloadGrace;
  if (!reloader_.Finish(deadline)) hangs_ = true;
  if (path_check && !path_check->Finish(deadline)) hangs_ = true;
  spdlog::info("pinfeedd ends");
  return state_.failure();
}

void Daemon::AwaitClients() {
  const Clock::time_point began = Clock::now();
  const int requests_before = state_.stop_requests();
  std::optional<Clock::time_point> shown_at;
  while (state_.stop_requests() == requests_before && !state_.lifetime_over()) {
    const Clock::time_point now = Clock::now();
    const auto limit =
        state_.failed() ? std::min(running_.drain_timeout(), kMaxAfterFailure) : running_.drain_timeout();
    if (state_.failure_shown() && !shown_at) shown_at = now + kAnswerTime;
    const Clock::time_point shown =
        !state_.failed() || !parts_->http
            ? began
            : std::min(shown_at.value_or(Clock::time_point::max()), began + kShowFailure);
    const bool left = parts_->sessions->AllLeft() || now >= began + limit;
    if (left && now >= shown) return;
    WaitOnce(left ? shown : began + limit);
  }
}

void Daemon::RequestReload(const std::string& who, Reloader::OnReloaded done) {
  if (!state_.ending()) {
    reloader_.Request(who, std::move(done));
  } else if (done) {
    done(FailedPrecondition("reload the configuration: the daemon is stopping"));
  }
}

Reloader::Parts Daemon::MakeReloaderParts() {
  return {
      .main = requests_,
      .make_load = [this]() -> Reloader::Load {
        return [read = read_config_, running = running_.command_line()](const Reloader::AtStep& at) {
          return LoadConfig(read, running, at);
        };
      },
      .adopt = [this](const std::string& who,
                      const LoadedConfig& loaded) { return running_.Adopt(who, loaded, *parts_); },
      .outcome = [this](bool good) { running_.SetGood(good); },
      .begun = [this] { service_.Reloading(); },
      .ready = [this](const std::string& remark) { service_.Ready(ServingText() + remark); },
  };
}

OperatorCalls Daemon::MakeOperatorCalls() {
  const auto stopped = [] { return Unavailable("the daemon has stopped"); };
  OperatorCalls calls;
  calls.drain = [this, stopped](const std::string& who) -> Status {
    const bool taken = requests_.Submit([this, who] {
      if (state_.ending()) return;  // a second request would end the drain at once
      spdlog::info("{}: draining", who);
      state_.RequestStop();
    });
    return taken ? OkStatus() : stopped();
  };
  calls.reload = [this, stopped](const std::string& who, const OperatorCalls::OnReloaded& done) {
    if (!requests_.Submit([this, who, done] { RequestReload(who, done); })) done(stopped());
  };
  calls.drop_cache = [this]() -> Result<std::pair<uint64_t, uint64_t>> {
    if (!parts_->cache) {
      return FailedPrecondition(
          "drop the cache: this daemon has none; set cache_bytes and restart it if decoded images are to be "
          "cached");
    }
    const DecodedCache::Dropped dropped = parts_->cache->Drop();
    return std::pair(dropped.entries, dropped.bytes);
  };
  calls.drain_timeout = [this] { return running_.drain_timeout(); };
  return calls;
}

}  // namespace pinfeed
