// SPDX-License-Identifier: Apache-2.0
// Wakes a thread that waits in poll(2).
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// Purpose: an event to poll for. Owns an eventfd. Threads: any.
class WakeEvent {
 public:
  static Result<WakeEvent> Create() {
    UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd) return ErrnoStatus("create an eventfd", errno);
    return WakeEvent(std::move(fd));
  }

  // Readable from Set to Clear.
  int fd() const { return fd_.get(); }
  void Set() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t set = ::write(fd_.get(), &one, sizeof one);  // EAGAIN: it is set
  }
  void Clear() const {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t cleared = ::read(fd_.get(), &count, sizeof count);
  }

 private:
  explicit WakeEvent(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace pinfeed
