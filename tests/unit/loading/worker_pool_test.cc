// SPDX-License-Identifier: Apache-2.0
#include "server/loading/worker_pool.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/testing.h"
#include "tests/unit/loading/counting_task.h"

namespace pinfeed {
namespace {

TEST(WorkerPoolTest, RunsEverySampleOnceAndThenDoneOnce) {
  WorkerPool pool(4);
  pool.Start();
  const auto share = std::make_shared<FeedShare>();
  for (const uint32_t samples : {1U, 2U, 3U, 64U, 257U}) {
    for (const uint32_t chunk_samples : {1U, 2U, 7U, 1000U}) {
      std::latch done(1);
      pool.Submit(
          std::make_shared<CountingTask>(share, samples, chunk_samples, nullptr, [&] { done.count_down(); }));
      done.wait();
    }
  }
}

// All workers join on one batch, so the first batch takes 1/W of a worker's time. Each wakes some others.
TEST(WorkerPoolTest, WorkersShareOneBatch) {
  constexpr uint32_t kThreads = 16;
  WorkerPool pool(kThreads);
  pool.Start();
  const auto share = std::make_shared<FeedShare>();
  for (int i = 0; i < 200; ++i)
    MeetInOneTask(share, kThreads, [&](auto task) { pool.Submit(std::move(task)); });
}

// One worker, stopped at a gate while the others queue up: then the order of the gate's release is the order
// of choice.
TEST(WorkerPoolTest, FeedNearestToStarvingGoesFirst) {
  WorkerPool pool(1);
  pool.Start();
  std::latch started(1);
  std::latch gate(1);
  std::latch done(4);
  std::vector<int> order;  // written by the one worker only
  const auto add = [&](const std::shared_ptr<FeedShare>& share, int name) {
    pool.Submit(std::make_shared<CountingTask>(
        share, 1, 1, [&order, name](uint32_t) { order.push_back(name); }, [&] { done.count_down(); }));
  };
  pool.Submit(std::make_shared<CountingTask>(
      std::make_shared<FeedShare>(), 1, 1,
      [&](uint32_t) {
        started.count_down();
        gate.wait();
      },
      [&] { done.count_down(); }));
  started.wait();
  const auto full = std::make_shared<FeedShare>();
  const auto half = std::make_shared<FeedShare>();
  const auto starving = std::make_shared<FeedShare>();
  full->ready = 3;
  half->ready = 1;
  add(full, 3);
  add(half, 2);
  add(starving, 1);
  gate.count_down();
  done.wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

// Parts of several batches come in turn: the oldest batch is completed first.
TEST(WorkerPoolTest, TasksOfAFeedGoInTheirOrder) {
  WorkerPool pool(1);
  const auto share = std::make_shared<FeedShare>();
  std::latch done(5);
  std::vector<uint64_t> order;  // written by the one worker only
  for (const uint64_t number : {3, 1, 2, 1, 0}) {
    pool.Submit(std::make_shared<CountingTask>(
        share, 1, 1, [&order, number](uint32_t) { order.push_back(number); }, [&] { done.count_down(); },
        number));
  }
  pool.Start();
  done.wait();
  EXPECT_EQ(order, (std::vector<uint64_t>{0, 1, 1, 2, 3}));
}

// What a feed waits for its storage is not held against it where decoding is shared out.
TEST(WorkerPoolTest, EachKindOfPoolCountsItsOwnTime) {
  const auto share = std::make_shared<FeedShare>();
  for (const PoolKind kind : {PoolKind::kWorkers, PoolKind::kReaders}) {
    WorkerPool pool(1, UINT32_MAX, kind);
    std::string name(16, '\0');
    pool.Submit(std::make_shared<CountingTask>(
        share, 1, 1, [&](uint32_t) { ::pthread_getname_np(::pthread_self(), name.data(), name.size()); },
        [] {}));
    const uint64_t other = share->WorkedNs();
    pool.Start();
    pool.Start();  // they run already
    while (pool.progress() == 0) std::this_thread::yield();
    pool.Stop();
    pool.Start();  // nothing starts any more
    EXPECT_EQ(std::string(name.c_str()), kind == PoolKind::kWorkers ? "worker0" : "reader0");
    EXPECT_EQ(pool.ThreadName(0), name.c_str());
    EXPECT_GT(share->In(kind).worked_ns, 0U);
    EXPECT_EQ(share->In(kind).worked_ns + other, share->WorkedNs());
  }
}

// One trainer gives its batches back at once, the other holds one while it asks for the next: both want all
// they can get, and get the same.
TEST(WorkerPoolTest, FeedWhoseTrainerHoldsABatchIsNotStarved) {
  WorkerPool pool(1);
  const std::array<std::shared_ptr<FeedShare>, 2> shares{std::make_shared<FeedShare>(),
                                                         std::make_shared<FeedShare>()};
  std::array<std::atomic<uint32_t>, 2> done{};
  // So many that a worker which loses its processor for some milliseconds decides nothing.
  constexpr uint32_t kBatches = 2000;
  std::atomic<uint32_t> left{kBatches};
  std::latch over(1);
  std::function<void(size_t)> submit = [&](size_t f) {
    pool.Submit(std::make_shared<CountingTask>(
        shares[f], 4, 1,
        [](uint32_t) {
          std::atomic<uint64_t> sink{0};
          for (uint64_t i = 0; i < 5000; ++i) sink.fetch_add(i, std::memory_order_relaxed);
        },
        [&, f] {
          const uint32_t batches = ++done[f];
          shares[f]->workers.batch_ns = shares[f]->workers.worked_ns / batches;
          shares[f]->ready = f == 0 ? 0 : 2;
          if (left.fetch_sub(1) == 1) over.count_down();
          if (left.load() <= kBatches) submit(f);
        }));
  };
  for (const size_t f : {0, 0, 1, 1}) submit(f);
  pool.Start();
  over.wait();
  pool.Stop();
  const double ratio =
      static_cast<double>(shares[0]->workers.worked_ns) / static_cast<double>(shares[1]->workers.worked_ns);
  EXPECT_GT(ratio, 0.5);
  EXPECT_LT(ratio, 2);
}

// Feeds that are equally hungry get equal worker time, whatever their samples cost: Jain's index (R. Jain et
// al., DEC-TR-301, 1984) of the time served, at the moment the first of them is through.
TEST(WorkerPoolTest, EquallyHungryFeedsShareWorkersFairly) {
  constexpr int kFeeds = 10;
  WorkerPool pool(2);
  std::vector<std::shared_ptr<FeedShare>> shares;
  std::latch first_done(1);
  std::atomic<bool> over{false};
  std::vector<double> served(kFeeds);
  for (int f = 0; f < kFeeds; ++f) shares.push_back(std::make_shared<FeedShare>());
  const auto on_done = [&] {
    if (over.exchange(true)) return;
    for (int f = 0; f < kFeeds; ++f)
      served[static_cast<size_t>(f)] = static_cast<double>(shares[static_cast<size_t>(f)]->workers.served_ns);
    first_done.count_down();
  };
  for (int f = 0; f < kFeeds; ++f) {
    const uint64_t cost = 1 + static_cast<uint64_t>(f) % 3;  // of one sample
    pool.Submit(std::make_shared<CountingTask>(
        shares[static_cast<size_t>(f)], 3000, 1,
        [cost](uint32_t) {
          std::atomic<uint64_t> sink{0};
          for (uint64_t i = 0; i < cost * 5000; ++i) sink.fetch_add(i, std::memory_order_relaxed);
        },
        on_done));
  }
  pool.Start();
  first_done.wait();
  pool.Stop();
  // Each worker's last sample may have been suspended for long: that counts as time served.
  std::ranges::sort(served);
  served.resize(kFeeds - 2);
  double sum = 0;
  double squares = 0;
  for (const double s : served) {
    sum += s;
    squares += s * s;
  }
  EXPECT_GE(sum * sum / (static_cast<double>(served.size()) * squares), 0.95);
}

// A feed that comes while the others have all they want gets no more than they from then on, however long
// they were served before it came.
TEST(WorkerPoolTest, FeedThatComesLateDoesNotCatchUp) {
  using Clock = std::chrono::steady_clock;
  WorkerPool pool(1);
  const auto old = std::make_shared<FeedShare>();
  const auto late = std::make_shared<FeedShare>();
  old->workers.served_ns = 3'600'000'000'000;
  std::latch begun(1);
  std::latch go(1);
  std::latch done(5);
  std::vector<const FeedShare*> order;  // of samples; by the only worker
  const auto began = Clock::now();
  const auto submit = [&](const std::shared_ptr<FeedShare>& share) {
    pool.Submit(std::make_shared<CountingTask>(
        share, 1, 1,
        [&, of = share.get()](uint32_t) {
          order.push_back(of);
          const auto start = Clock::now();
          // The first one takes longer than the task before it.
          while (order.size() == 1 && Clock::now() - start <= start - began) {
          }
        },
        [&] { done.count_down(); }));
  };
  pool.Submit(std::make_shared<CountingTask>(
      old, 1, 1,
      [&](uint32_t) {
        begun.count_down();
        go.wait();
      },
      [] {}));
  pool.Start();
  begun.wait();
  for (int i = 0; i < 4; ++i) submit(late);
  submit(old);
  go.count_down();
  done.wait();
  pool.Stop();
  EXPECT_EQ(order[0], late.get());
  EXPECT_EQ(order[1], old.get());
}

// One of several threads stays free for batches, and a batch comes before what is left of idle work.
TEST(WorkerPoolTest, IdleWorkWaitsForEverythingElse) {
  for (const uint32_t threads : {1U, 3U}) {
    WorkerPool pool(threads);
    const uint32_t idling = std::max(threads - 1, 1U);
    std::latch begun(idling);
    std::latch go(1);
    std::latch idle_done(1);
    std::latch batch_done(1);
    std::atomic<uint32_t> idle{0};
    std::atomic<uint32_t> idle_at_batch{UINT32_MAX};
    pool.SubmitIdle(std::make_shared<CountingTask>(
        std::make_shared<FeedShare>(), 20, 1,
        [&](uint32_t) {
          if (idle.fetch_add(1) < idling) begun.count_down();
          go.wait();
        },
        [&] { idle_done.count_down(); }));
    pool.Start();
    begun.wait();
    EXPECT_EQ(pool.busy(), idling);
    pool.Submit(std::make_shared<CountingTask>(
        std::make_shared<FeedShare>(), 1, 1, [&](uint32_t) { idle_at_batch = idle.load(); },
        [&] { batch_done.count_down(); }));
    if (threads > 1) batch_done.wait();  // by the thread that is free
    go.count_down();
    batch_done.wait();
    idle_done.wait();
    EXPECT_EQ(idle_at_batch, idling);
    pool.Stop();
  }
}

TEST(WorkerPoolTest, IdleWorkWakesThreadsThatSleep) {
  WorkerPool pool(4);
  pool.Start();
  const auto share = std::make_shared<FeedShare>();
  for (int i = 0; i < 100; ++i)  // one thread stays free
    MeetInOneTask(share, 3, [&](auto task) { pool.SubmitIdle(std::move(task)); });
}

// What ends a batch may take a while.
TEST(WorkerPoolTest, TaskThatComesDuringAnEndDoesNotWaitForIt) {
  WorkerPool pool(2);
  pool.Start();
  const auto share = std::make_shared<FeedShare>();
  std::latch next_begun(1);
  std::latch done(1);
  pool.Submit(std::make_shared<CountingTask>(share, 1, 1, nullptr, [&] {
    pool.Submit(std::make_shared<CountingTask>(
        share, 1, 1, [&](uint32_t) { next_begun.count_down(); }, [] {}));
    next_begun.wait();
    done.count_down();
  }));
  done.wait();
}

TEST(WorkerPoolTest, IdleWorkIsWithdrawnByItsShare) {
  const auto share = std::make_shared<FeedShare>();
  const auto other = std::make_shared<FeedShare>();
  std::latch other_done(2);
  const auto withdrawn = [&] {
    return std::make_shared<CountingTask>(share, 5, 1, nullptr, [] { FAIL() << "it was withdrawn"; });
  };
  WorkerPool pool(2);
  pool.SubmitIdle(withdrawn());
  pool.SubmitIdle(std::make_shared<CountingTask>(other, 3, 1, nullptr, [&] { other_done.count_down(); }));
  pool.SubmitIdle(withdrawn());
  pool.SubmitIdle(std::make_shared<CountingTask>(other, 3, 1, nullptr, [&] { other_done.count_down(); }));
  pool.WithdrawIdle(*share);
  EXPECT_EQ(share->users.load(), 0U);
  EXPECT_EQ(other->users.load(), 2U);
  pool.Start();
  other_done.wait();
  pool.Stop();
}

TEST(WorkerPoolTest, StopDropsWhatNobodyHasBegun) {
  const auto task = std::make_shared<CountingTask>(std::make_shared<FeedShare>(), 5, 1, nullptr,
                                                   [] { FAIL() << "nothing was started"; });
  WorkerPool pool(1);
  pool.Submit(task);
  EXPECT_EQ(task.use_count(), 2);
  pool.Stop();
  EXPECT_EQ(task.use_count(), 1);
  pool.Submit(task);  // after the stop: refused
  EXPECT_EQ(task.use_count(), 1);
}

// Who waits for the tasks of a feed may count on what they own, for instance the last share of the feed.
TEST(WorkerPoolTest, TaskCountsUntilWhatItOwnsIsGone) {
  const auto share = std::make_shared<FeedShare>();
  std::latch ended(1);
  // Destroyed with the function that owns it, by the worker, after Done().
  std::shared_ptr<int> owned(new int(0), [&](const int* value) {
    delete value;
    EXPECT_EQ(share->users.load(), 1U);
    ended.count_down();
  });
  WorkerPool pool(1);
  pool.Start();
  pool.Submit(std::make_shared<CountingTask>(
      share, 1, 1, [kept = std::move(owned)](uint32_t) {}, [] {}));
  ended.wait();
  share->AwaitUsers();
  EXPECT_EQ(share->users.load(), 0U);
}

// Storage of one user does not answer: the workers that it may have stand, another user is served, and so is
// all that is left once it does.
TEST(WorkerPoolTest, OneUserLeavesWorkersToTheOthers) {
  WorkerPool pool(3, 2);
  std::latch blocked(2);
  std::latch answered(1);
  std::latch hung_done(2);
  std::latch other_done(4);
  const auto hung = std::make_shared<FeedShare>(1);
  const auto other = std::make_shared<FeedShare>(2);
  std::atomic<uint32_t> at_once{0};
  std::atomic<uint32_t> most{0};
  std::atomic<uint32_t> begun{0};
  for (int i = 0; i < 2; ++i) {
    pool.Submit(std::make_shared<CountingTask>(
        hung, 8, 1,
        [&](uint32_t) {
          const uint32_t now = at_once.fetch_add(1) + 1;
          for (uint32_t seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
          }
          if (begun.fetch_add(1) < 2) blocked.count_down();
          answered.wait();
          at_once.fetch_sub(1);
        },
        [&] { hung_done.count_down(); }));
  }
  pool.Start();
  blocked.wait();
  for (int i = 0; i < 4; ++i)
    pool.Submit(std::make_shared<CountingTask>(other, 8, 1, nullptr, [&] { other_done.count_down(); }));
  other_done.wait();
  answered.count_down();
  hung_done.wait();
  EXPECT_EQ(most, 2U);
  pool.Stop();
}

}  // namespace
}  // namespace pinfeed
