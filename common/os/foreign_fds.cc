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

// Purpose: closes descriptors in order, each on a thread that has nothing else to do. Its threads are
// detached, since one that hangs must not hold up the end of the process. Never destroyed. Threads: any.
class Closer {
 public:
  void Add(UniqueFd fd) {
    const MutexLock lock(mutex_);
    waiting_.push_back(std::move(fd));
    if (waiting_.size() > idle_ && threads_ < kMaxThreads) {
      try {
        StartThread("close", [this] { Run(); }).detach();
        ++threads_;
      } catch (const std::system_error&) {  // those that run do it later
      }
    }
    changed_.NotifyOne();
  }

 private:
  void Run() {
    while (true) {
      UniqueFd fd;
      {
        const MutexLock lock(mutex_);
        ++idle_;
        while (waiting_.empty()) changed_.Wait(mutex_);
        --idle_;
        fd = std::move(waiting_.front());
        waiting_.pop_front();
      }
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<UniqueFd> waiting_ PF_GUARDED_BY(mutex_);
  size_t threads_ PF_GUARDED_BY(mutex_) = 0;
  size_t idle_ PF_GUARDED_BY(mutex_) = 0;  // of these, those that wait for a descriptor
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
  int accepted = 1;
  socklen_t length = sizeof accepted;
  const bool may_have_fds =
      ::getsockopt(fd, SOL_SOCKET, kPassRights, &accepted, &length) != 0 || accepted != 0;
  UniqueFd connection(fd);
  if (!may_have_fds) return;
  ::shutdown(fd, SHUT_RDWR);
  CloseApart(std::move(connection));
}

}  // namespace pinfeed
