// SPDX-License-Identifier: Apache-2.0
// How many of a pool's threads a feed or a user may have.
#include <array>
#include <atomic>
#include <barrier>
#include <functional>
#include <latch>
#include <memory>
#include <thread>
#include <utility>

#include "server/loading/native_batch_producer.h"
#include "server/loading/worker_pool.h"
#include "tests/support/testing.h"
#include "tests/unit/loading/counting_task.h"

namespace pinfeed {
namespace {

// The threads that a feed may not have go to others, but not to idle work: their processors are to stay free.
TEST(WorkerLimitsTest, FeedHasAtMostItsWorkers) {
  WorkerPool pool(4);
  const auto limited = std::make_shared<FeedShare>(0, 1, 2);
  std::latch both(2);
  std::latch go(1);
  std::latch limited_done(2);
  std::latch other_done(1);
  std::latch idle_done(1);
  std::atomic<uint32_t> running{0};
  std::atomic<uint32_t> most{0};
  std::atomic<uint32_t> begun{0};
  const auto run = [&](uint32_t) {
    const uint32_t now = ++running;
    for (uint32_t seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    if (begun++ < 2) both.count_down();
    go.wait();
    --running;
  };
  for (int i = 0; i < 2; ++i)
    pool.Submit(std::make_shared<CountingTask>(limited, 50, 1, run, [&] { limited_done.count_down(); }));
  pool.SubmitIdle(std::make_shared<CountingTask>(
      std::make_shared<FeedShare>(), 3, 1, [&](uint32_t) { EXPECT_GE(begun, 98U) << "of 100"; },
      [&] { idle_done.count_down(); }));
  pool.Start();
  both.wait();
  // By the threads that are left.
  pool.Submit(std::make_shared<CountingTask>(std::make_shared<FeedShare>(), 20, 1, nullptr,
                                             [&] { other_done.count_down(); }));
  other_done.wait();
  EXPECT_EQ(running, 2U);
  go.count_down();
  limited_done.wait();
  EXPECT_EQ(most, 2U);
  idle_done.wait();
  pool.Stop();
  EXPECT_EQ(limited->In(PoolKind::kWorkers).running, 0U);
}

TEST(WorkerLimitsTest, SmallBatchesHaveFewWorkers) {
  FeedShare share(0, 1, 6);
  EXPECT_EQ(share.MaxWorkers(), 6U) << "nothing is known of its batches";
  share.workers.worked_ns = 999'999;
  share.workers.CountBatches(50);
  EXPECT_EQ(share.workers.batch_ns, FeedShare::PoolShare::kUnknownBatchNs) << "too short a time";
  share.workers.worked_ns = 1'000'000;
  share.workers.CountBatches(50);
  EXPECT_EQ(share.workers.batch_ns, 20'000U);
  EXPECT_EQ(share.MaxWorkers(), 4U);
  share.workers.worked_ns += 8'000'000;
  share.workers.CountBatches(51);
  EXPECT_EQ(share.workers.batch_ns, (7 * 20'000U + 8'000'000U) / 8) << "its storage has become slow";
  EXPECT_EQ(share.MaxWorkers(), 6U);
  EXPECT_EQ(FeedShare(0, 1, 2).MaxWorkers(), 2U);
}

TEST(WorkerLimitsTest, ManyWorkersLeaveMemoryToCopies) {
  for (const auto& [workers, limit] :
       {std::pair(1U, 1U), {16U, 16U}, {32U, 32U}, {33U, 32U}, {48U, 36U}, {64U, 48U}, {1024U, 768U}})
    EXPECT_EQ(WorkersBesideCopies(workers), limit) << workers;
}

// Whatever the order of the ends: each task is run, although its arrival wakes nobody.
TEST(WorkerLimitsTest, TasksOfLimitedFeedsAreNotForgotten) {
  WorkerPool pool(4);
  pool.Start();
  const std::array<std::shared_ptr<FeedShare>, 3> shares{std::make_shared<FeedShare>(0, 1, 1),
                                                         std::make_shared<FeedShare>(0, 2, 2),
                                                         std::make_shared<FeedShare>(0, 3)};
  constexpr uint32_t kTasks = 20'000;
  std::latch done(kTasks);
  std::array<std::atomic<uint32_t>, 3> running{};
  for (uint32_t i = 0; i < kTasks; ++i) {
    const size_t f = i % 3;
    pool.Submit(std::make_shared<CountingTask>(
        shares[f], 1 + i % 2, 1,
        [&, f](uint32_t) {
          EXPECT_LE(++running[f], shares[f]->max_workers);
          --running[f];
        },
        [&] { done.count_down(); }));
    if (i % 64 == 0) std::this_thread::yield();
  }
  done.wait();
  pool.Stop();
}

// A batch that comes as another one ends wakes nobody: the thread that ends it takes one, and wakes another
// thread for a second.
TEST(WorkerLimitsTest, TasksThatComeWithAnEndAreNotForgotten) {
  WorkerPool pool(6);
  pool.Start();
  const auto share = std::make_shared<FeedShare>(0, 1, 2);
  std::barrier both(2);
  std::latch pairs_done(2'000);
  std::function<void(int)> submit_pair = [&](int left) {
    const auto ended = std::make_shared<std::atomic<int>>(0);
    for (int i = 0; i < 2; ++i) {
      pool.Submit(std::make_shared<CountingTask>(
          share, 1, 1, [&](uint32_t) { both.arrive_and_wait(); },
          [&, left, ended] {
            if (++*ended == 2 && left > 1) submit_pair(left - 1);
            pairs_done.count_down();
          }));
    }
  };
  submit_pair(1'000);
  pairs_done.wait();
  // None that has ended counts as one that is to come.
  for (int i = 0; i < 500; ++i) {
    std::latch done(1);
    pool.Submit(std::make_shared<CountingTask>(share, 1, 1, nullptr, [&] { done.count_down(); }));
    done.wait();
  }
  pool.Stop();
}

// Threads that sleep are woken for as much as a feed or its user may have.
TEST(WorkerLimitsTest, LimitedFeedHasAllThreadsThatItMay) {
  for (const bool of_user : {false, true}) {
    WorkerPool pool(16, of_user ? 12 : UINT32_MAX);
    pool.Start();
    const auto share = std::make_shared<FeedShare>(0, 1, of_user ? UINT32_MAX : 12);
    for (int i = 0; i < 100; ++i) MeetInOneTask(share, 12, [&](auto task) { pool.Submit(std::move(task)); });
    pool.Stop();
  }
}

// The limit of a user counts idle work too.
TEST(WorkerLimitsTest, IdleWorkOfAUserIsLimitedAsTheirBatches) {
  WorkerPool pool(4, 1);
  std::latch begun(2);
  std::latch go(1);
  std::latch done(2);
  std::array<std::atomic<uint32_t>, 2> running{};
  for (const uid_t user : {0U, 1U}) {
    pool.SubmitIdle(std::make_shared<CountingTask>(
        std::make_shared<FeedShare>(user), 10, 1,
        [&, user, first = true](uint32_t) mutable {
          EXPECT_EQ(running[user].fetch_add(1), 0U);
          if (std::exchange(first, false)) begun.count_down();
          go.wait();
          running[user].fetch_sub(1);
        },
        [&] { done.count_down(); }));
  }
  pool.Start();
  begun.wait();
  EXPECT_EQ(pool.busy(), 2U);
  go.count_down();
  done.wait();
  pool.Stop();
}

TEST(WorkerLimitsTest, FeedsThatAreShortOfMemoryHaveHalfOfTheWorkersTogether) {
  WorkerPool pool(4);
  pool.Start();
  std::latch blocked(2);
  std::latch gate(1);
  std::latch done(2);
  std::atomic<int> most = 0;
  for (int feed = 0; feed < 2; ++feed) {
    const auto share = std::make_shared<FeedShare>();
    share->memory_is_short = true;
    pool.Submit(std::make_shared<CountingTask>(
        share, 3, 1,
        [&](uint32_t) {
          if (++most <= 2) blocked.count_down();
          gate.wait();
        },
        [&] { done.count_down(); }));
  }
  blocked.wait();
  std::latch other(8);
  for (int i = 0; i < 8; ++i)
    pool.Submit(std::make_shared<CountingTask>(std::make_shared<FeedShare>(), 1, 1, nullptr,
                                               [&] { other.count_down(); }));
  other.wait();  // the two other threads are there for it
  EXPECT_EQ(most, 2);
  gate.count_down();
  done.wait();
}

TEST(FeedShareTest, MemoryIsNoLongerShortSomeTimeBehindTheLastWait) {
  FeedShare share;
  EXPECT_TRUE(share.WaitForMemory());
  EXPECT_FALSE(share.WaitForMemory());
  share.HadMemory();
  EXPECT_TRUE(share.memory_is_short);
  share.waited_for_memory -= std::chrono::steady_clock::duration(FeedShare::kShortMemory).count();
  share.HadMemory();
  EXPECT_FALSE(share.memory_is_short);
  EXPECT_TRUE(share.WaitForMemory());
}

}  // namespace
}  // namespace pinfeed
