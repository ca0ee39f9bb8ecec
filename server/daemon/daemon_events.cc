// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/daemon_events.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "common/os/poll_timeout.h"
#include "server/daemon/startup_signal_watcher.h"

namespace pinfeed {
namespace {

sigset_t DaemonSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  return set;
}

}  // namespace

void BlockDaemonSignals() {
  const sigset_t set = DaemonSignals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // writes to a closed peer fail with EPIPE
  ::signal(SIGXFSZ, SIG_IGN);  // growing a memfd beyond RLIMIT_FSIZE fails with EFBIG
}

Status DaemonEvents::Open(UniqueFd lifetime) {
  lifetime_ = std::move(lifetime);
  const sigset_t set = DaemonSignals();
  signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return ErrnoStatus("create a signalfd", errno);
  ASSIGN_OR_RETURN(wake_, WakeEvent::Create());
  return OkStatus();
}

void DaemonEvents::Wake() const {
  if (wake_) wake_->Set();
}

DaemonEvents::Seen DaemonEvents::Wait(Clock::time_point until) {
  std::array<pollfd, 3> waits = {pollfd{signals_.get(), POLLIN, 0},
                                 pollfd{lifetime_over_ ? -1 : lifetime(), POLLIN, 0},
                                 pollfd{wake_->fd(), POLLIN, 0}};
  Seen seen;
  if (::poll(waits.data(), waits.size(), PollTimeout(until)) <= 0) return seen;  // EINTR: a debugger
  if (waits[1].revents != 0 && HasHungUp(lifetime())) seen.lifetime_over = lifetime_over_ = true;
  if (waits[2].revents != 0) {
    wake_->Clear();
    seen.woken = true;
  }
  signalfd_siginfo signal{};
  if (waits[0].revents != 0 && ::read(signals_.get(), &signal, sizeof signal) == sizeof signal)
    seen.signal = {signal.ssi_signo, signal.ssi_pid};
  return seen;
}

}  // namespace pinfeed
