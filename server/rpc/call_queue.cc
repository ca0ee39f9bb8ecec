// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_queue.h"

#include <algorithm>
#include <utility>

#include "common/os/start_thread.h"

namespace pinfeed {

CallQueue::CallQueue(Bounds bounds, const char* name) : bounds_(bounds) {
  try {
    for (uint32_t i = 0; i < bounds.threads; ++i)
      threads_.push_back(StartThread(name, [this] { RunCalls(); }));
  } catch (...) {
    Stop();
    throw;
  }
}

CallQueue::~CallQueue() {
  Stop();
}

void CallQueue::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool CallQueue::Submit(uid_t user, Call call, bool anyway) {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return false;
    User& entry = users_[user];
    if (!anyway && entry.waiting.size() >= bounds_.waiting_a_user) return false;
    entry.waiting.push_back(std::move(call));
  }
  changed_.NotifyAll();
  return true;
}

bool CallQueue::Finish(std::chrono::steady_clock::time_point deadline) {
  const MutexLock lock(mutex_);
  stopping_ = true;
  changed_.NotifyAll();
  while (!users_.empty()) {
    if (!changed_.WaitUntil(mutex_, deadline)) return users_.empty();
  }
  return true;
}

std::map<uid_t, CallQueue::User>::iterator CallQueue::NextUserLocked() {
  const bool last_quarter = bounds_.threads - running_ <= bounds_.threads / 4;
  const uint32_t max_running = last_quarter ? 1 : bounds_.running_a_user;
  const auto may_run = [max_running](const auto& user) {
    return !user.second.waiting.empty() && user.second.running < max_running;
  };
  const auto after = users_.upper_bound(last_);
  const auto found = std::find_if(after, users_.end(), may_run);
  if (found != users_.end()) return found;
  const auto before = std::find_if(users_.begin(), after, may_run);
  return before != after ? before : users_.end();
}

void CallQueue::RunCalls() {
  while (true) {
    Call call;
    uid_t user = 0;
    {
      const MutexLock lock(mutex_);
      auto next = NextUserLocked();
      while (next == users_.end()) {
        // The waiting calls wait for running ones to end; the threads of those will run them.
        if (stopping_) return;
        changed_.Wait(mutex_);
        next = NextUserLocked();
      }
      user = last_ = next->first;
      call = std::move(next->second.waiting.front());
      next->second.waiting.pop_front();
      ++next->second.running;
      ++running_;
      // The end of one call may have made room for two: the same user's next, and another user's.
      if (NextUserLocked() != users_.end()) changed_.NotifyOne();
    }
    call();
    call = nullptr;  // destroys what the call holds, without the lock
    const MutexLock lock(mutex_);
    const auto entry = users_.find(user);
    --running_;
    --entry->second.running;
    if (entry->second.running == 0 && entry->second.waiting.empty()) users_.erase(entry);
    if (stopping_ && users_.empty()) changed_.NotifyAll();
  }
}

}  // namespace pinfeed
