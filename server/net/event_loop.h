// SPDX-License-Identifier: Apache-2.0
// A thread that waits for descriptors, deadlines and posted work.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// Purpose: epoll with callbacks. Owns: the epoll and wake-up descriptors, the thread. Borrows: each watched
// descriptor, until Remove. Threads: Post, Start and Stop from outside; everything else on the loop's thread
// (or before Start). Callbacks must not block. Errors: Watch fails when the kernel is out of memory.
// Invariant: after Remove(id) the callback of that id is not called again, not even for events collected
// earlier.
class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using WatchId = uint64_t;  // never reused
  using OnEvents = std::function<void(uint32_t epoll_events)>;

  static Result<std::unique_ptr<EventLoop>> Create(std::string thread_name);
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void Start();
  // Waits for the running callback and joins the thread. Drops posted work that has not begun. Idempotent.
  void Stop();
  void Post(std::function<void()> work) PF_EXCLUDES(mutex_);

  Result<WatchId> Watch(int fd, uint32_t epoll_events, OnEvents callback);
  void Change(WatchId id, uint32_t epoll_events);
  void Remove(WatchId id);
  // Calls `callback` once. Timers cannot be cancelled, so the callback must check that it is still needed.
  void At(Clock::time_point deadline, std::function<void()> callback);

 private:
  struct Watched {
    int fd;
    OnEvents callback;
  };
  EventLoop(UniqueFd epoll, UniqueFd wake, std::string thread_name);
  void Run();
  void RunTimers();
  void RunPosted() PF_EXCLUDES(mutex_);
  int TimeoutMs() const;

  const UniqueFd epoll_;
  const UniqueFd wake_;
  const std::string thread_name_;
  // Used by the loop's thread only.
  WatchId next_id_ = 1;
  std::unordered_map<WatchId, std::shared_ptr<Watched>> watched_;
  std::multimap<Clock::time_point, std::function<void()>> timers_;

  Mutex mutex_;
  std::vector<std::function<void()>> posted_ PF_GUARDED_BY(mutex_);
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // used by the owner only
};

}  // namespace pinfeed
