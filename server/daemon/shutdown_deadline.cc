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

// No higher number is in use: the kernel assigns the lowest free one.
constexpr rlim_t kMaxDescriptors = 1 << 20;
constexpr unsigned kReleaseSeconds = 2;

// Closes listeners and shuts down connections. Shutting down a listener would also affect the service
// manager, which may own it. Other threads may fail from here on; that no longer matters. Probes each
// number: listing the descriptors would allocate memory, and a hung thread may hold that lock.
void ReleaseSockets() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = kMaxDescriptors;
  const int end = static_cast<int>(std::min(limit.rlim_cur, kMaxDescriptors));
  for (int fd = STDERR_FILENO + 1; fd < end; ++fd) {
    int listens = 0;
    socklen_t length = sizeof listens;
    // Fails for what is not a socket, without touching its file system.
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0) continue;
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
    thread_ = StartThread("shutdown-limit", [this] { Run(); });
  } catch (const std::system_error& error) {
    spdlog::warn("cannot start the thread that limits shutdown to {} s: {}", limit_.count(), error.what());
  }
}

ShutdownDeadline::~ShutdownDeadline() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void ShutdownDeadline::Run() {
  const auto deadline = std::chrono::steady_clock::now() + limit_;
  {
    const MutexLock lock(mutex_);
    while (!stopped_ && changed_.WaitUntil(mutex_, deadline)) {
    }
    if (stopped_) return;
  }
  // If even this hangs, for example because the lock file is on hung storage, the signal ends the process.
  ::signal(SIGALRM, SIG_DFL);
  ::alarm(kReleaseSeconds);
  spdlog::error("a GPU or a disk has not answered for {} s: the daemon exits without a clean shutdown",
                limit_.count());
  ReleaseSockets();
  if (lock_ >= 0) ::flock(lock_, LOCK_UN);  // last, so that the next daemon finds no served socket
  std::_Exit(EXIT_FAILURE);
}

}  // namespace pinfeed
