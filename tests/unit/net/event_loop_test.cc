// SPDX-License-Identifier: Apache-2.0
#include "server/net/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <future>
#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

class EventLoopTest : public ::testing::Test {
 protected:
  // Returns once the loop has done what was asked of it until now.
  void Settle() {
    std::promise<void> done;
    loop_->Post([&] { loop_->At(EventLoop::Clock::now(), [&] { done.set_value(); }); });
    done.get_future().wait();
  }
  std::unique_ptr<EventLoop> loop_ = std::move(EventLoop::Create("loop")).value();
};

TEST_F(EventLoopTest, RemovedCallbacksAreNotCalledForEventsOfTheSameRound) {
  const UniqueFd one(::eventfd(1, EFD_CLOEXEC));
  const UniqueFd two(::eventfd(1, EFD_CLOEXEC));  // both readable before the loop starts
  EventLoop::WatchId ids[2] = {};
  int calls = 0;
  const auto remove_both = [&](uint32_t /*events*/) {
    ++calls;
    loop_->Remove(ids[0]);
    loop_->Remove(ids[1]);
  };
  ASSERT_OK_AND_ASSIGN(ids[0], loop_->Watch(one.get(), EPOLLIN, remove_both));
  ASSERT_OK_AND_ASSIGN(ids[1], loop_->Watch(two.get(), EPOLLIN, remove_both));
  loop_->Start();
  Settle();
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, NumbersOfRemovedWatchesAreNotUsedAgain) {
  const UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
  ASSERT_OK_AND_ASSIGN(const EventLoop::WatchId first, loop_->Watch(fd.get(), EPOLLIN, [](uint32_t) {}));
  loop_->Remove(first);
  ASSERT_OK_AND_ASSIGN(const EventLoop::WatchId second, loop_->Watch(fd.get(), EPOLLIN, [](uint32_t) {}));
  EXPECT_NE(first, second);
  loop_->Remove(first);            // nothing
  loop_->Change(first, EPOLLOUT);  // nothing
  loop_->Change(second, 0);        // still watched
}

TEST_F(EventLoopTest, WhatCannotBeWatchedIsTold) {
  EXPECT_THAT(loop_->Watch(-1, EPOLLIN, [](uint32_t) {}), StatusIs(Code::kInternal));
}

TEST_F(EventLoopTest, TimersRunOnceInTheOrderOfTheirDeadlines) {
  std::vector<int> order;
  const auto now = EventLoop::Clock::now();
  for (const int ms : {3, 1, 2})
    loop_->At(now + std::chrono::milliseconds(ms), [&order, ms] { order.push_back(ms); });
  std::promise<void> last;
  loop_->At(now + std::chrono::milliseconds(4), [&] { last.set_value(); });
  loop_->Start();
  last.get_future().wait();
  Settle();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST_F(EventLoopTest, StoppedLoopRunsNothingMore) {
  loop_->Start();
  Settle();
  loop_->Stop();
  bool ran = false;
  loop_->Post([&] { ran = true; });
  loop_->Stop();
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace pinfeed
