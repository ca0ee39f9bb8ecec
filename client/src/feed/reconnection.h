// SPDX-License-Identifier: Apache-2.0
// When a feed tries a lost daemon again, and when it gives up. In: failed tries. Out: whether another is due.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "client/src/base/backoff.h"
#include "client/src/base/deadline.h"
#include "client/src/base/unix_socket.h"
#include "common/base/status.h"

namespace pinfeed {

// Purpose: the schedule of the tries. Threads: one; Wait blocks. Errors: no error is final, since the daemon
// may still return.
class Reconnection {
 public:
  // `timeout` unset: tries without limit; 0: does not try.
  Reconnection(std::string address, std::optional<std::chrono::milliseconds> timeout)
      : address_(std::move(address)), timeout_(timeout) {}

  // The session was lost now. A try is due at once.
  void Begin();
  // Returns kUnavailable, and begins the timeout anew, if the daemon was away for that long.
  Status CheckTimeout();
  bool Due() const;
  // Whether there are tries at all.
  bool Tries() const { return timeout_ != std::chrono::milliseconds(0); }
  // Waits until a try may be due. kDeadlineExceeded: `deadline` has passed.
  Status Wait(const Deadline& deadline) const;
  // Sets when the next try is due.
  void Failed(Status tried);
  std::chrono::nanoseconds away() const { return std::chrono::steady_clock::now() - lost_at_; }

 private:
  const std::string address_;
  const std::optional<std::chrono::milliseconds> timeout_;
  SteadyTime lost_at_{};
  SteadyTime next_try_{};
  Backoff backoff_;
  Status last_try_;
};

}  // namespace pinfeed
