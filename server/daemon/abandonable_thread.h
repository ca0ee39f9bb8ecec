// SPDX-License-Identifier: Apache-2.0
// A thread that reads files for the daemon and can be abandoned when their storage hangs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace pinfeed {

// Purpose: runs a body that may block forever in a system call, without making its owner block too.
// Owns: the thread, until it is joined or abandoned. The destructor abandons (detaches) a thread that still
// runs. An abandoned thread continues if its storage answers, and otherwise ends with the process.
// Threads: one caller at a time. Only Finish blocks.
// Errors: the constructor throws std::system_error when no thread can be started.
// Invariant: the body uses only data that it owns, so an abandoned thread never touches the daemon.
class AbandonableThread {
 public:
  using Clock = std::chrono::steady_clock;
  // The body calls this before each step that may block on storage. `step` describes it: "reading
  // '/etc/pinfeed.toml'".
  using AtStep = std::function<void(std::string step)>;
  // Must use only data that it owns. Must not throw.
  using Body = std::function<void(const AtStep& at)>;

  // `name` is the thread's name, at most 15 characters.
  AbandonableThread(const char* name, std::string first_step, Body body);
  // Abandons the thread if it still runs.
  ~AbandonableThread();
  AbandonableThread(AbandonableThread&&) = default;
  AbandonableThread& operator=(AbandonableThread&&) = delete;

  // The current step, or the last one.
  std::string step() const;
  // Waits for the thread until `deadline`. Returns whether it has ended.
  bool Finish(Clock::time_point deadline);

 private:
  class Progress;

  std::shared_ptr<Progress> progress_;
  std::thread thread_;  // not joinable once joined
};

}  // namespace pinfeed
