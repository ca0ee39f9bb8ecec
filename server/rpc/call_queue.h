// SPDX-License-Identifier: Apache-2.0
// Calls that may block, on threads of their own. In: a call and its user. Out: the same, run when its turn
// comes.
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

// Purpose: lets calls wait for a thread instead of being refused, and keeps slow calls of one user, or of a
// few, from taking all threads. Owns: its threads and the calls that wait. Threads: Submit from any thread;
// blocks for nothing. Errors: see Submit. Invariants: 1. a user has at most `running_a_user` threads, and of
// the last quarter of all at most one; 2. users take turns; 3. every call that was taken is run, at the
// latest at the end.
class CallQueue {
 public:
  using Call = std::function<void()>;
  struct Bounds {
    uint32_t threads = 1;
    uint32_t running_a_user = 1;
    size_t waiting_a_user = 1;
  };

  // Throws std::system_error when the system gives no thread; none is left then. `name` is the threads'.
  CallQueue(Bounds bounds, const char* name);
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  // False when too many calls of the user wait already, or this ends: the call is not taken.
  bool Submit(uid_t user, Call call) PF_EXCLUDES(mutex_);
  // As Submit, however many wait. False when this ends.
  bool SubmitAnyway(uid_t user, Call call) PF_EXCLUDES(mutex_);
  // Takes nothing more, and runs what waits. False when a call has not ended by then: what it
  // uses must live on, and this with it.
  bool Finish(std::chrono::steady_clock::time_point deadline) PF_EXCLUDES(mutex_);

 private:
  // Runs what waits, and joins.
  void Stop() PF_EXCLUDES(mutex_);
  struct User {
    std::deque<Call> waiting;
    uint32_t running = 0;
  };
  void Run() PF_EXCLUDES(mutex_);
  // Whose turn it is; nobody's when all calls run that may.
  std::map<uid_t, User>::iterator NextLocked() PF_REQUIRES(mutex_);

  const Bounds bounds_;
  Mutex mutex_;
  CondVar changed_;
  std::map<uid_t, User> users_ PF_GUARDED_BY(mutex_);  // with calls that wait or run
  uint32_t running_ PF_GUARDED_BY(mutex_) = 0;         // of all users
  uid_t last_ PF_GUARDED_BY(mutex_) = 0;               // whose turn it was
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // owner only
};

}  // namespace pinfeed
