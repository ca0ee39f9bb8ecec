// SPDX-License-Identifier: Apache-2.0
#include "server/net/event_loop.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>

#include "common/os/poll_timeout.h"
#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

constexpr uint64_t kWake = 0;
constexpr int kMaxEvents = 64;

}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::Create(std::string thread_name) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return ErrnoStatus("create an epoll descriptor", errno);
  ASSIGN_OR_RETURN(WakeEvent wake, WakeEvent::Create());
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWake;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.fd(), &event) != 0)
    return ErrnoStatus("watch an eventfd", errno);
  return std::unique_ptr<EventLoop>(new EventLoop(std::move(epoll), std::move(wake), std::move(thread_name)));
}

EventLoop::EventLoop(UniqueFd epoll, WakeEvent wake, std::string thread_name)
    : epoll_(std::move(epoll)), wake_(std::move(wake)), thread_name_(std::move(thread_name)) {}

EventLoop::~EventLoop() {
  Stop();
}

void EventLoop::Start() {
  thread_ = StartThread(thread_name_, [this] { Run(); });
}

void EventLoop::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  Post([] {});  // wakes the thread
  if (thread_.joinable()) thread_.join();
}

void EventLoop::Post(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    posted_.push_back(std::move(work));
  }
  wake_.Set();
}

Result<EventLoop::Watched> EventLoop::Watch(int fd, uint32_t epoll_events, OnEvents callback) {
  const uint64_t id = next_id_++;
  epoll_event event{};
  event.events = epoll_events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return ErrnoStatus("watch descriptor " + std::to_string(fd), errno);
  watched_.emplace(id, std::make_shared<Entry>(Entry{fd, std::move(callback)}));
  return Watched(this, id);
}

void EventLoop::Watched::Change(uint32_t epoll_events) {
  PF_CHECK(loop_ != nullptr, "a descriptor is watched");
  epoll_event event{};
  event.events = epoll_events;
  event.data.u64 = id_;
  PF_CHECK(::epoll_ctl(loop_->epoll_.get(), EPOLL_CTL_MOD, loop_->watched_.at(id_)->fd, &event) == 0,
           "a watched descriptor stays open");
}

void EventLoop::Watched::End() {
  if (loop_ == nullptr) return;
  EventLoop& loop = *std::exchange(loop_, nullptr);
  const auto found = loop.watched_.find(id_);
  PF_CHECK(::epoll_ctl(loop.epoll_.get(), EPOLL_CTL_DEL, found->second->fd, nullptr) == 0,
           "a watched descriptor stays open");
  loop.watched_.erase(found);
}

void EventLoop::At(Clock::time_point deadline, std::function<void()> callback) {
  timers_.emplace(deadline, std::move(callback));
}

void EventLoop::RunTimers() {
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const auto callback = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    callback();
  }
}

void EventLoop::RunPosted() {
  wake_.Clear();
  std::vector<std::function<void()>> work;
  {
    const MutexLock lock(mutex_);
    work.swap(posted_);
  }
  for (const auto& task : work) task();
}

void EventLoop::Run() {
  std::array<epoll_event, kMaxEvents> events{};
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
    }
    const auto until = timers_.empty() ? Clock::time_point::max() : timers_.begin()->first;
    const int count = ::epoll_wait(epoll_.get(), events.data(), kMaxEvents, PollTimeout(until));
    PF_CHECK(count >= 0 || errno == EINTR, "epoll_wait failed on our own descriptor");
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events.at(static_cast<size_t>(i));
      const uint64_t key = event.data.u64;  // a copy: the struct is packed, so its field may be misaligned
      if (key == kWake) {
        RunPosted();
        continue;
      }
      const auto found = watched_.find(key);
      if (found == watched_.end()) continue;              // an earlier callback of this round ended it
      const std::shared_ptr<Entry> held = found->second;  // keeps the callback alive if it ends itself
      held->callback(event.events);
    }
    RunTimers();
  }
}

}  // namespace pinfeed
