// SPDX-License-Identifier: Apache-2.0
// A thread that reads files for the daemon itself, and may be abandoned when their storage hangs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace pinfeed {

// Purpose: runs a body that may never return from a system call, so nothing waits for it without a deadline.
// Owns: the thread, until it is joined or abandoned. The destructor detaches a thread that still runs: it
// goes on when its storage answers, or ends with the process. Threads: one at a time; only Finish blocks.
// Errors: the constructor throws std::system_error when the system gives no thread. Invariant: the body uses
// only what it owns, so an abandoned thread touches nothing of the daemon.
class AbandonableThread {
 public:
  using Clock = std::chrono::steady_clock;
  // The body calls it before each step that may block on storage, with the step's name: "reading
  // '/etc/pinfeed.toml'".
  using AtStep = std::function<void(std::string step)>;
  // Uses only what it owns. Does not throw.
  using Body = std::function<void(const AtStep& at)>;

  // `name`: the thread's, at most 15 characters.
  AbandonableThread(const char* name, std::string first_step, Body body);
  // Abandons the thread if it still runs.
  ~AbandonableThread();
  AbandonableThread(AbandonableThread&&) = default;
  AbandonableThread& operator=(AbandonableThread&&) = delete;

  // The step that runs now, or ran last.
  std::string step() const;
  // Waits for the thread until `deadline`. Returns whether it has ended.
  bool Finish(Clock::time_point deadline);

 private:
  class Progress;

  std::shared_ptr<Progress> progress_;
  std::thread thread_;  // not joinable once joined
};

}  // namespace pinfeed
