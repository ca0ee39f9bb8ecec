// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/startup_signal_watcher.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "common/base/log.h"
#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

[[noreturn]] void EndProcess(const std::function<void()>& on_end) {
  on_end();
  spdlog::info("pinfeedd stops before it was ready");
  ::_exit(0);  // not exit(), which would destroy data that the main thread uses
}

void WatchUntil(int stop, int signals, int lifetime, const std::function<void()>& on_end,
                const std::function<void()>& on_hup) {
  while (true) {
    std::array<pollfd, 3> waits = {pollfd{stop, POLLIN, 0}, pollfd{signals, POLLIN, 0},
                                   pollfd{lifetime, POLLIN, 0}};
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;  // EINTR: a debugger
    if (waits[0].revents != 0) return;
    if (waits[2].revents != 0 && HasHungUp(lifetime)) {
      spdlog::info("the process this daemon serves has ended");
      EndProcess(on_end);
    }
    signalfd_siginfo signal{};
    if (::read(signals, &signal, sizeof signal) != sizeof signal) continue;
    if (signal.ssi_signo == SIGHUP) {
      on_hup();
      continue;
    }
    spdlog::info("signal {} from pid {} while starting", signal.ssi_signo, signal.ssi_pid);
    EndProcess(on_end);
  }
}

}  // namespace

Result<StartupSignalWatcher> StartupSignalWatcher::Create(int signals, int lifetime,
                                                          std::function<void()> on_end,
                                                          std::function<void()> on_hup) {
  ASSIGN_OR_RETURN(WakeEvent stop, WakeEvent::Create());
  std::thread thread = StartThread(
      "start-signals", [fd = stop.fd(), signals, lifetime, on_end = std::move(on_end),
                        on_hup = std::move(on_hup)] { WatchUntil(fd, signals, lifetime, on_end, on_hup); });
  return StartupSignalWatcher(std::move(stop), std::move(thread));
}

StartupSignalWatcher::~StartupSignalWatcher() {
  if (!thread_.joinable()) return;
  stop_.Set();
  thread_.join();
}

bool HasHungUp(int fd) {
  std::array<char, 64> ignored{};
  const ssize_t bytes = ::read(fd, ignored.data(), ignored.size());
  return bytes == 0 || (bytes < 0 && errno != EINTR && errno != EAGAIN);
}

}  // namespace pinfeed
