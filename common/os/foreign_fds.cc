// SPDX-License-Identifier: Apache-2.0
#include "common/os/foreign_fds.h"

#include <sys/socket.h>

#include <deque>
#include <new>
#include <system_error>
#include <utility>

#include "common/base/sync.h"
#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

constexpr size_t kMaxThreads = 16;
constexpr int kPassRights = 83;  // SO_PASSRIGHTS, which older headers lack

// Purpose: closes descriptors on threads that have nothing else to do, and end when nothing is left. They are
// detached, since one that hangs must not hold up the end of the process. Never destroyed. Threads: any.
class Closer {
 public:
  void Add(UniqueFd fd) {
    const MutexLock lock(mutex_);
    waiting_.push_back(std::move(fd));
    if (threads_ == kMaxThreads) return;
    try {
      StartThread("close", [this] { Run(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {  // those that run do it, or the next one
    }
  }

 private:
  void Run() {
    while (true) {
      UniqueFd fd;
      const MutexLock lock(mutex_);
      if (waiting_.empty()) {
        --threads_;
        return;
      }
      fd = std::move(waiting_.front());
      waiting_.pop_front();
    }  // gives the lock back, then closes
  }

  Mutex mutex_;
  std::deque<UniqueFd> waiting_ PF_GUARDED_BY(mutex_);
  size_t threads_ PF_GUARDED_BY(mutex_) = 0;
};

Closer& TheCloser() {
  static Closer& closer = *new Closer;
  return closer;
}

}  // namespace

void RefuseForeignFds(int socket) {
  const int refused = 0;
  (void)::setsockopt(socket, SOL_SOCKET, kPassRights, &refused, sizeof refused);
}

void CloseApart(UniqueFd fd) noexcept {
  try {
    TheCloser().Add(std::move(fd));
  } catch (const std::bad_alloc&) {  // it is closed here, then
  }
}

void ConnectionTraits::Close(int fd) noexcept {
  const auto option = [fd](int name, int unknown) {
    int value = unknown;
    socklen_t length = sizeof value;
    return ::getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : unknown;
  };
  UniqueFd connection(fd);
  if (option(SO_DOMAIN, AF_UNIX) != AF_UNIX || option(kPassRights, 1) == 0) return;
  ::shutdown(fd, SHUT_RDWR);
  CloseApart(std::move(connection));
}

}  // namespace pinfeed
