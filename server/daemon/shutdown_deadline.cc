// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/shutdown_deadline.h"

#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <system_error>

#include "common/base/log.h"
#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

constexpr rlim_t kMaxDescriptors = 1 << 20;  // beyond it there is none, as numbers are given from below
constexpr unsigned kLettingGoS = 2;

// Looks at the numbers themselves: a list of them would take memory, whose lock may be held. The question is
// answered without asking the file system of a descriptor that is no socket.
bool Asks(int fd, int option, int& answer) {
  socklen_t length = sizeof answer;
  return ::getsockopt(fd, SOL_SOCKET, option, &answer, &length) == 0;
}

// A listener is closed, not shut down: that would take it from the service manager too, whose it may be. What
// others are at meanwhile goes wrong, and does not matter any more.
void LetGoOfSockets() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = kMaxDescriptors;
  const int end = static_cast<int>(std::min(limit.rlim_cur, kMaxDescriptors));
  for (int fd = STDERR_FILENO + 1; fd < end; ++fd) {
    int listens = 0;
    if (!Asks(fd, SO_ACCEPTCONN, listens)) continue;
    if (listens != 0) {
      ::close(fd);
    } else {
      ::shutdown(fd, SHUT_RDWR);
    }
  }
}

}  // namespace

ShutdownDeadline::ShutdownDeadline(std::chrono::seconds limit, int lock) : limit_(limit), lock_(lock) {
  try {
    thread_ = StartThread("stop-limit", [this] { Run(); });
  } catch (const std::system_error& error) {
    spdlog::warn("no thread to bound the end by {} s: {}", limit_.count(), error.what());
  }
}

ShutdownDeadline::~ShutdownDeadline() {
  {
    const MutexLock lock(mutex_);
    over_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void ShutdownDeadline::Run() {
  const auto deadline = std::chrono::steady_clock::now() + limit_;
  {
    const MutexLock lock(mutex_);
    while (!over_ && changed_.WaitUntil(mutex_, deadline)) {
    }
    if (over_) return;
  }
  // Should even this hang, as when the lock lies on storage that does, the signal ends the process.
  ::signal(SIGALRM, SIG_DFL);
  ::alarm(kLettingGoS);
  spdlog::error("a GPU or a disk has not answered for {} s: the daemon ends without having stopped",
                limit_.count());
  LetGoOfSockets();
  if (lock_ >= 0) ::flock(lock_, LOCK_UN);  // last: who gets it finds nobody serving
  std::_Exit(EXIT_FAILURE);
}

}  // namespace pinfeed
