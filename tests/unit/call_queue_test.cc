// SPDX-License-Identifier: Apache-2.0
#include "server/session/call_queue.h"

#include <atomic>
#include <future>

#include "tests/testing.h"

namespace pinfeed {
namespace {

TEST(CallQueueTest, OneUserLeavesThreadsToTheOthersAndWaitsItself) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> ran{0};
  {
    CallQueue queue(4, 10);
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

}  // namespace
}  // namespace pinfeed
