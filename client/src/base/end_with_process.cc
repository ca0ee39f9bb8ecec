// SPDX-License-Identifier: Apache-2.0
#include "client/src/base/end_with_process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "common/os/blocked_signals.h"
#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

// Waits until the process has ended, then ends this one.
[[noreturn]] void EndWith(int pidfd) {
  pollfd entry{pidfd, POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&entry, 1, -1);
  } while (ready < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOMEM));
  ::_exit(1);
}

Status CheckPidfd(int fd) {
  // Signal 0 sends nothing. Any other error concerns the process, such as one that has ended.
  if (::syscall(SYS_pidfd_send_signal, fd, 0, nullptr, 0) == 0 || errno != EBADF) return OkStatus();
  return InvalidArgument("descriptor " + std::to_string(fd) + " is not one of pidfd_open(2)");
}

}  // namespace

Status EndWithProcess(int pidfd) {
  RETURN_IF_ERROR(CheckPidfd(pidfd));
  const BlockedSignals blocked;
  StartThread("pf-end-with", [pidfd] { EndWith(pidfd); }).detach();
  return OkStatus();
}

}  // namespace pinfeed
