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
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/base/unique_handle.h"
#include "common/os/wake_event.h"

namespace pinfeed {

// Purpose: epoll with callbacks. Owns: the epoll and wake-up descriptors, the thread. Threads: Post, Start
// and Stop from outside; everything else on the loop's thread (or before Start, or after Stop). Callbacks
// must not block. Errors: Watch fails when the kernel is out of memory.
class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using OnEvents = std::function<void(uint32_t epoll_events)>;

  static Result<std::unique_ptr<EventLoop>> Create(std::string thread_name);
  ~EventLoop();

  // Purpose: a watched descriptor, or none. Its callback is not called after its end, not even for events
  // collected earlier. Borrows: the loop and the descriptor, which outlive it. Move-only.
  class Watched {
   public:
    Watched() = default;
    Watched(Watched&& other) noexcept : loop_(std::exchange(other.loop_, nullptr)), id_(other.id_) {}
    Watched& operator=(Watched&& other) noexcept {
      std::swap(loop_, other.loop_);
      std::swap(id_, other.id_);
      other.End();
      return *this;
    }
    ~Watched() { End(); }
    explicit operator bool() const { return loop_ != nullptr; }
    // Precondition: a descriptor is watched.
    void Change(uint32_t epoll_events);
    void End();

   private:
    friend class EventLoop;
    Watched(EventLoop* loop, uint64_t id) : loop_(loop), id_(id) {}
    EventLoop* loop_ = nullptr;
    uint64_t id_ = 0;  // never reused
  };

  void Start();
  // Waits for the running callback and joins the thread. Drops posted work that has not begun. Idempotent.
  void Stop();
  void Post(std::function<void()> work) PF_EXCLUDES(mutex_);

  Result<Watched> Watch(int fd, uint32_t epoll_events, OnEvents callback);
  // Calls `callback` once. Timers cannot be cancelled, so the callback must check that it is still needed.
  void At(Clock::time_point deadline, std::function<void()> callback);

 private:
  struct Entry {
    int fd;
    OnEvents callback;
  };
  EventLoop(UniqueFd epoll, WakeEvent wake, std::string thread_name);
  void Run();
  void RunTimers();
  void RunPosted() PF_EXCLUDES(mutex_);

  const UniqueFd epoll_;
  const WakeEvent wake_;
  const std::string thread_name_;
  // Used by the loop's thread only.
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::shared_ptr<Entry>> watched_;
  std::multimap<Clock::time_point, std::function<void()>> timers_;

  Mutex mutex_;
  std::vector<std::function<void()>> posted_ PF_GUARDED_BY(mutex_);
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // used by the owner only
};

}  // namespace pinfeed
