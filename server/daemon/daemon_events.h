// SPDX-License-Identifier: Apache-2.0
// What the main thread waits for: signals, the end of the process that a private daemon serves, and other
// threads.
#pragma once

#include <chrono>
#include <optional>

#include "common/base/status.h"
#include "common/base/unique_handle.h"
#include "common/os/wake_event.h"

namespace pinfeed {

// Blocks the signals that the daemon reads through signalfd, in this thread and in all threads it starts.
// Call before the first thread starts.
void BlockDaemonSignals();

// Purpose: waits for everything at once. Owns: the signalfd, the lifetime pipe, the eventfd. Threads: Wake
// from any, the rest from the main thread. Errors: those of Open.
class DaemonEvents {
 public:
  using Clock = std::chrono::steady_clock;
  struct Signal {
    unsigned number = 0;
    unsigned sender = 0;  // pid
  };
  struct Seen {
    std::optional<Signal> signal = {};
    bool lifetime_over = false;  // seen once
    bool woken = false;
  };

  // Precondition: BlockDaemonSignals. `lifetime` is empty for a daemon that serves no process.
  Status Open(UniqueFd lifetime);
  // Ends Wait.
  void Wake() const;
  Seen Wait(Clock::time_point until);
  int signals() const { return signals_.get(); }
  // -1 for a daemon that serves no process.
  int lifetime() const { return lifetime_ ? lifetime_.get() : -1; }

 private:
  UniqueFd signals_;
  UniqueFd lifetime_;
  bool lifetime_over_ = false;
  std::optional<WakeEvent> wake_;
};

}  // namespace pinfeed
