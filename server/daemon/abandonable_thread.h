// SPDX-License-Identifier: Apache-2.0
// A thread that looks at storage for the daemon itself. In: what it does. Out: its end, or where it hangs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace pinfeed {

// Purpose: a thread that may never come back from storage, and that nobody waits for without a limit. Owns:
// the thread, until it has been joined or is left to itself. Threads: one at a time; only Finish waits.
// Errors: the constructor throws std::system_error when the system gives no thread. Invariant: what the
// thread shares with this lives as long as either.
class AbandonableThread {
 public:
  using Clock = std::chrono::steady_clock;
  // Is told what comes next, before each step that may wait for storage: "reading '/etc/pinfeed.toml'".
  using AtStep = std::function<void(std::string step)>;
  // Uses nothing but what it holds itself. Throws nothing.
  using Body = std::function<void(const AtStep& at)>;

  // `name` is the thread's, 15 letters at most.
  AbandonableThread(const char* name, std::string first_step, Body body);
  // Leaves one that is still at it to itself.
  ~AbandonableThread();
  AbandonableThread(AbandonableThread&&) = default;
  AbandonableThread& operator=(AbandonableThread&&) = delete;

  // What it is at, or was last.
  std::string step() const;
  // Whether it has ended, for which it waits until then.
  bool Finish(Clock::time_point deadline);

 private:
  class Progress;

  std::shared_ptr<Progress> progress_;
  std::thread thread_;  // not joinable once joined
};

}  // namespace pinfeed
