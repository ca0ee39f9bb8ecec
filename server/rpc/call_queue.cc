// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_queue.h"

#include <algorithm>
#include <utility>

#include "common/os/start_thread.h"

namespace pinfeed {

CallQueue::CallQueue(Bounds bounds, const char* name) : bounds_(bounds) {
  try {
    for (uint32_t i = 0; i < bounds.threads; ++i) threads_.push_back(StartThread(name, [this] { Run(); }));
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
    if (stopping_) return false;
    User& entry = users_[user];
    if (entry.waiting.size() >= bounds_.waiting_a_user) return false;
    entry.waiting.push_back(std::move(call));
  }
  changed_.NotifyAll();
  return true;
}

bool CallQueue::SubmitAnyway(uid_t user, Call call) {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return false;
    users_[user].waiting.push_back(std::move(call));
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

std::map<uid_t, CallQueue::User>::iterator CallQueue::NextLocked() {
  const bool last_quarter = bounds_.threads - running_ <= bounds_.threads / 4;
  const uint32_t most = last_quarter ? 1 : bounds_.running_a_user;
  const auto may_run = [most](const auto& user) {
    return !user.second.waiting.empty() && user.second.running < most;
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
        // What waits now waits for calls to end, whose threads will run it.
        if (stopping_) return;
        changed_.Wait(mutex_);
        next = NextLocked();
      }
      user = last_ = next->first;
      call = std::move(next->second.waiting.front());
      next->second.waiting.pop_front();
      ++next->second.running;
      ++running_;
      // The end of one call may have let two in: its user's next, and one that its thread made room for.
      if (NextLocked() != users_.end()) changed_.NotifyOne();
    }
    call();
    call = nullptr;  // what it holds goes without the lock
    const MutexLock lock(mutex_);
    const auto entry = users_.find(user);
    --running_;
    --entry->second.running;
    if (entry->second.running == 0 && entry->second.waiting.empty()) users_.erase(entry);
    if (stopping_ && users_.empty()) changed_.NotifyAll();
  }
}

}  // namespace pinfeed
