// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_queue.h"

#include <atomic>
#include <future>
#include <latch>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(CallQueueTest, OneUserLeavesThreadsToTheOthersAndWaitsItself) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> ran{0};
  {
    CallQueue queue({.threads = 4, .running_a_user = 2, .waiting_a_user = 10}, "call");
    int taken = 0;
    for (int i = 0; i < 20; ++i) {
      taken += queue.Submit(1, [&ran, released] {
        released.wait();
        ++ran;
      });
    }
    EXPECT_GE(taken, 10);
    EXPECT_LE(taken, 12);  // two of them run
    std::promise<void> other;
    ASSERT_TRUE(queue.Submit(2, [&other] { other.set_value(); }));
    other.get_future().wait();
    EXPECT_EQ(ran, 0);
    release.set_value();
    ran -= taken;
  }
  EXPECT_EQ(ran, 0);  // what was taken was run
}

// However many users have calls that do not end: until the threads are used up, one that has none gets one.
TEST(CallQueueTest, TheLastQuarterIsForUsersThatHaveNoThread) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> running{0};
  std::atomic<int> ran{0};
  std::latch all_busy(16);
  std::latch begin(1);
  {
    CallQueue queue({.threads = 16, .running_a_user = 4, .waiting_a_user = 10}, "call");
    // Until all that is to wait waits, one call each of others has all threads: the turns begin with it.
    for (uid_t user = 101; user <= 116; ++user) {
      ASSERT_TRUE(queue.Submit(user, [&] {
        all_busy.count_down();
        begin.wait();
      }));
    }
    all_busy.wait();
    for (uid_t user = 1; user <= 5; ++user) {
      for (int i = 0; i < 10; ++i) {
        ASSERT_TRUE(queue.Submit(user, [&, released] {
          ++running;
          running.notify_all();
          released.wait();
          ++ran;
        }));
      }
    }
    begin.count_down();
    // Three quarters, and one each of those who had none by then: users take turns, so that is nobody.
    for (int now = running; now < 12; now = running) running.wait(now);
    for (uid_t user = 6; user <= 9; ++user) {
      std::promise<void> one;
      ASSERT_TRUE(queue.Submit(user, [&one, released] {
        one.set_value();
        released.wait();
      }));
      one.get_future().wait();
    }
    EXPECT_EQ(running, 12);
    release.set_value();
  }
  EXPECT_EQ(ran, 50);  // what was taken was run
}

}  // namespace
}  // namespace pinfeed
