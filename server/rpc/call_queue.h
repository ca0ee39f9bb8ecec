// SPDX-License-Identifier: Apache-2.0
// A pool of threads for calls that may block, shared fairly between users. In: calls with their user. Out:
// each call is run.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "common/base/sync.h"

namespace pinfeed {

// Purpose: lets calls wait for a thread instead of refusing them, and keeps slow calls of one or a few users
// from taking all threads. Owns: its threads and the waiting calls. Threads: Submit from any thread; never
// blocks. Errors: see Submit. Invariants: 1. a user has at most `running_a_user` threads, and at most one of
// the last quarter of all threads; 2. users take turns; 3. every accepted call is run, at the latest on
// destruction.
class CallQueue {
 public:
  using Call = std::function<void()>;
  struct Bounds {
    uint32_t threads = 1;
    uint32_t running_a_user = 1;
    size_t waiting_a_user = 1;
  };

  // Names its threads `name`. Throws std::system_error, leaving no thread behind, when the system cannot
  // create a thread.
  CallQueue(Bounds bounds, const char* name);
  ~CallQueue();

  // Returns false without accepting the call if too many calls of the user wait, which `anyway` ignores, or
  // if the queue is stopping.
  bool Submit(uid_t user, Call call, bool anyway = false) PF_EXCLUDES(mutex_);
  // Accepts no more calls and runs the waiting ones. Returns false if a call has not ended by the deadline;
  // the queue and what the call uses must then stay alive.
  bool Finish(std::chrono::steady_clock::time_point deadline) PF_EXCLUDES(mutex_);

 private:
  // Runs the waiting calls and joins the threads.
  void Stop() PF_EXCLUDES(mutex_);
  struct User {
    std::deque<Call> waiting;
    uint32_t running = 0;
  };
  void RunCalls() PF_EXCLUDES(mutex_);
  // The user whose turn is next; end() if no waiting call may run now.
  std::map<uid_t, User>::iterator NextUserLocked() PF_REQUIRES(mutex_);

  const Bounds bounds_;
  Mutex mutex_;
  CondVar changed_;
  std::map<uid_t, User> users_ PF_GUARDED_BY(mutex_);  // users with waiting or running calls
  uint32_t running_ PF_GUARDED_BY(mutex_) = 0;         // running calls of all users
  uid_t last_ PF_GUARDED_BY(mutex_) = 0;               // the user that had the last turn
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // used by the owner only
};

}  // namespace pinfeed
