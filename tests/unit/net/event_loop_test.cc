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
  std::unique_ptr<EventLoop> loop_ = EventLoop::Create("loop").value();
};

TEST_F(EventLoopTest, RemovedCallbacksAreNotCalledForEventsOfTheSameRound) {
  const UniqueFd one(::eventfd(1, EFD_CLOEXEC));
  const UniqueFd two(::eventfd(1, EFD_CLOEXEC));  // both readable before the loop starts
  EventLoop::Watched watched[2];
  int calls = 0;
  const auto remove_both = [&](uint32_t /*events*/) {
    ++calls;
    watched[0].End();
    watched[1].End();
  };
  ASSERT_OK_AND_ASSIGN(watched[0], loop_->Watch(one.get(), EPOLLIN, remove_both));
  ASSERT_OK_AND_ASSIGN(watched[1], loop_->Watch(two.get(), EPOLLIN, remove_both));
  loop_->Start();
  Settle();
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, WhatIsWatchedInPlaceOfAnotherIsWatchedAlone) {
  const UniqueFd fd(::eventfd(1, EFD_CLOEXEC));
  int calls = 0;
  ASSERT_OK_AND_ASSIGN(EventLoop::Watched watched,
                       loop_->Watch(fd.get(), EPOLLIN, [](uint32_t) { FAIL() << "is watched no more"; }));
  EventLoop::Watched other = std::move(watched);
  other.End();
  ASSERT_OK_AND_ASSIGN(other, loop_->Watch(fd.get(), 0, [&](uint32_t) {
    ++calls;
    other.End();
  }));
  EXPECT_FALSE(watched);
  EXPECT_TRUE(other);
  other.Change(EPOLLIN);
  loop_->Start();
  Settle();
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(other);
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
