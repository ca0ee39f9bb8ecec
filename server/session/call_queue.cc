// SPDX-License-Identifier: Apache-2.0
#include "server/session/call_queue.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace pinfeed {

CallQueue::CallQueue(uint32_t threads, size_t max_waiting_a_user)
    : max_running_a_user_(std::max(1U, threads / 2)), max_waiting_a_user_(max_waiting_a_user) {
  try {
    for (uint32_t i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { Run(); });
      ::pthread_setname_np(threads_.back().native_handle(), "call");
    }
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

bool CallQueue::Submit(uid_t user, Call call) {
  {
    const MutexLock lock(mutex_);
    User& entry = users_[user];
    if (entry.waiting.size() >= max_waiting_a_user_) return false;
    entry.waiting.push_back(std::move(call));
  }
  changed_.NotifyAll();
  return true;
}

std::map<uid_t, CallQueue::User>::iterator CallQueue::NextLocked() {
  const auto may_run = [this](const auto& user) {
    return !user.second.waiting.empty() && user.second.running < max_running_a_user_;
  };
  const auto after = users_.upper_bound(last_);
  const auto found = std::find_if(after, users_.end(), may_run);
  if (found != users_.end()) return found;
  const auto before = std::find_if(users_.begin(), after, may_run);
  return before != after ? before : users_.end();
}

void CallQueue::Run() {
  while (true) {
    Call call;
    uid_t user = 0;
    {
      const MutexLock lock(mutex_);
      auto next = NextLocked();
      while (next == users_.end()) {
        // What waits now waits for calls of its user, whose threads will run it.
        if (stopping_) return;
        changed_.Wait(mutex_);
        next = NextLocked();
      }
      user = last_ = next->first;
      call = std::move(next->second.waiting.front());
      next->second.waiting.pop_front();
      ++next->second.running;
    }
    call();
    call = nullptr;  // what it holds goes without the lock
    const MutexLock lock(mutex_);
    const auto entry = users_.find(user);
    --entry->second.running;
    if (entry->second.running == 0 && entry->second.waiting.empty()) users_.erase(entry);
  }
}

}  // namespace pinfeed
