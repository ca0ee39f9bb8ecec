// SPDX-License-Identifier: Apache-2.0
// Feeds whose batches processes fill: in which order they come, what becomes of a process's batches when it
// ends, hangs up or lies.
#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/feed/feed_processes_fixture.h"

namespace pinfeed {
namespace {

TEST_F(FeedProcessesTest, LanesTakeTurnsWhoeverIsFirst) {
  Open(9 * kBatchSize, 4, 1, {.lanes = 3});
  const Attached one = Start(101, 1);
  const Attached zero = Start(100, 0);
  const Attached two = Start(102, 2);
  for (uint64_t batch = 0; batch < 9; ++batch) {
    const Attached& process = batch % 3 == 0 ? zero : batch % 3 == 1 ? one : two;
    const ProducerTask task = Await(*process.link);
    EXPECT_EQ(task.batch_index, batch);
    FillAndReport(process, task);
    ExpectBatch(0, batch);
  }
}

TEST_F(FeedProcessesTest, OnlyTheNextProcessOfALaneGetsItsBatch) {
  Open(4 * kBatchSize, 4, 1, {.lanes = 2});
  const Attached zero = Start(100, 0);
  const Attached one = Start(101, 1);
  const ProducerTask lost = Await(*one.link);
  EXPECT_EQ(lost.batch_index, 1U);
  ASSERT_TRUE(group_->OnHungUp(one.id));
  group_->OnEnded(one.id);
  for (const uint64_t batch : {0, 2}) {
    const ProducerTask task = Await(*zero.link);
    EXPECT_EQ(task.batch_index, batch);
    FillAndReport(zero, task);
  }
  EXPECT_FALSE(zero.link->Take().has_value());
  const Attached again = Start(102, 1);
  for (const uint64_t batch : {1, 3}) {
    const ProducerTask task = Await(*again.link);
    EXPECT_EQ(task.batch_index, batch);
    FillAndReport(again, task);
  }
  for (uint64_t batch = 0; batch < 4; ++batch) ExpectBatch(0, batch);
}

TEST_F(FeedProcessesTest, ALaneThatNoBatchHasIsRefused) {
  Open(4 * kBatchSize, 3, 1, {.lanes = 2});
  EXPECT_OK(group_->CheckRoom(1));
  EXPECT_THAT(group_->CheckRoom(2), StatusIs(Code::kInvalidArgument, testing::HasSubstr("no lane 2")));
}

TEST_F(FeedProcessesTest, BatchesComeInOrderWhoeverIsFirst) {
  Open(100, 3);
  const Attached a = Start();
  const Attached b = Start();
  const Attached c = Start();
  const ProducerTask of_a = Await(*a.link);
  const ProducerTask of_b = Await(*b.link);
  const ProducerTask of_c = Await(*c.link);
  FillAndReport(c, of_c);
  FillAndReport(b, of_b);
  EXPECT_EQ(client_->ready(), of_a.batch_index == 0 ? 0U : 1U);
  FillAndReport(a, of_a);
  for (uint64_t batch = 0; batch < 3; ++batch) ExpectBatch(0, batch);
}

TEST_F(FeedProcessesTest, FeedWaitsForItsFirstProducer) {
  Open(100, 3);
  EXPECT_EQ(client_->ready(), 0U);
  const Attached only = Start();
  for (uint64_t batch = 0; batch < 10; ++batch) {
    FillAndReport(only, Await(*only.link));
    ExpectBatch(0, batch);
  }
  EXPECT_EQ(group_->counts().producers, 1U);
  EXPECT_GT(group_->counts().worked_ns, 0U);
}

TEST_F(FeedProcessesTest, BatchOfAnEndedProcessIsDealtAgain) {
  Open(100, 3);
  const Attached killed = Start(7);
  const ProducerTask begun = Await(*killed.link);
  EXPECT_EQ(begun.batch_index, 0U);
  const Attached other = Start(8);
  const ProducerTask second = Await(*other.link);
  group_->OnEnded(killed.id);
  FillAndReport(other, second);
  const ProducerTask again = Await(*other.link);
  EXPECT_EQ(again.batch_index, 0U);
  EXPECT_EQ(again.slot, begun.slot);
  EXPECT_NE(again.task, begun.task);
  FillAndReport(other, again);
  ExpectBatch(0, 0);
  ExpectBatch(0, second.batch_index);
  EXPECT_EQ(group_->counts().dealt_again, 1U);
}

TEST_F(FeedProcessesTest, TaskThatCannotBeSentIsOfAnotherProcess) {
  Open(100, 3);
  const Attached first = Start(7);
  const ProducerTask begun = Await(*first.link);
  first.link->unreachable = true;
  const Attached other = Start(8);
  FillAndReport(first, begun);  // has no task now, so it would get the next
  ExpectBatch(0, 0);
  for (uint64_t batch = 1; batch < 5; ++batch) {
    const ProducerTask task = Await(*other.link);
    EXPECT_EQ(task.batch_index, batch);
    FillAndReport(other, task);
    ExpectBatch(0, batch);
  }
  EXPECT_FALSE(first.link->Take().has_value());
  EXPECT_EQ(group_->counts().dealt_again, 0U);
}

TEST_F(FeedProcessesTest, BatchWaitsWhileAProcessThatHungUpMayStillWrite) {
  Open(100, 3);
  const Attached gone = Start(7);
  const ProducerTask begun = Await(*gone.link);
  EXPECT_TRUE(group_->OnHungUp(gone.id));
  const Attached other = Start(8);
  for (int i = 0; i < 2; ++i) {
    const ProducerTask task = Await(*other.link);
    EXPECT_NE(task.slot, begun.slot);
    FillAndReport(other, task);
  }
  EXPECT_EQ(client_->ready(), 0U);
  EXPECT_EQ(other.link->count(), 0U);
  group_->OnEnded(gone.id);
  FillAndReport(other, Await(*other.link));
  for (uint64_t batch = 0; batch < 3; ++batch) ExpectBatch(0, batch);
}

TEST_F(FeedProcessesTest, IdleProducerThatHangsUpIsForgotten) {
  Open(kBatchSize, 3, 1);  // one batch only
  const Attached idle = Start();
  const Attached idler = Start();
  const ProducerTask last = Await(*idle.link);
  EXPECT_FALSE(group_->OnHungUp(idler.id));
  EXPECT_EQ(group_->counts().producers, 1U);
  FillAndReport(idle, last);
  ExpectBatch(0, 0);
}

TEST_F(FeedProcessesTest, BatchThatKillsEveryProcessFailsTheFeed) {
  Open(100, 3);
  for (uint32_t death = 0; death < ProducerGroup::kMaxDeaths; ++death) {
    const Attached doomed = Start(static_cast<pid_t>(40 + death));
    EXPECT_EQ(Await(*doomed.link).batch_index, 0U);
    group_->OnEnded(doomed.id);
  }
  EXPECT_FALSE(client_->Next());
  EXPECT_EQ(client_->state(), FeedState::kFailed);
  const std::string text(client_->page().error_text, client_->page().error_bytes);
  EXPECT_THAT(text, HasSubstr("3 processes ended while they filled batch 0 of epoch 0, the last one was 42"));
}

TEST_F(FeedProcessesTest, BatchIsNotBlamedForTheEndOfAllProcessesAtOnce) {
  Open(4 * kBatchSize, 3, 1);
  std::vector<Attached> doomed;
  for (pid_t pid = 40; pid < 46; ++pid) doomed.push_back(Start(pid));
  for (const Attached& process : doomed) group_->OnEnded(process.id);
  const Attached survivor = Start();
  for (uint64_t batch = 0; batch < 4; ++batch) {
    FillAndReport(survivor, Await(*survivor.link));
    ExpectBatch(0, batch);
  }
}

TEST_F(FeedProcessesTest, ProducersErrorFailsTheFeed) {
  Open(100, 3);
  const Attached honest = Start();
  const ProducerTask task = Await(*honest.link);
  EXPECT_OK(group_->OnDone(honest.id, task.task, Status(Code::kUnknown, "out of paper")));
  EXPECT_FALSE(client_->Next());
  const std::string text(client_->page().error_text, client_->page().error_bytes);
  EXPECT_THAT(text, HasSubstr("the producer of batch 0 of epoch 0 says: out of paper"));
}

TEST_F(FeedProcessesTest, OnlyTasksInHandCanBeDone) {
  Open(100, 3);
  const Attached a = Start();
  const ProducerTask task = Await(*a.link);
  const Attached b = Start();
  const ProducerTask of_b = Await(*b.link);
  EXPECT_EQ(group_->OnDone(a.id, of_b.task, OkStatus()).code(), Code::kInvalidArgument);
  EXPECT_EQ(group_->OnDone(a.id, 999, OkStatus()).code(), Code::kInvalidArgument);
  FillAndReport(a, task);
  EXPECT_EQ(group_->OnDone(a.id, task.task, OkStatus()).code(), Code::kInvalidArgument) << "a second time";
  EXPECT_EQ(client_->ready(), 1U);
}

TEST_F(FeedProcessesTest, StopWaitsForNoProcess) {
  Open(100, 3);
  const Attached slow = Start();
  const ProducerTask task = Await(*slow.link);
  feed_->Depart(client_->participant(), Ended());
  StopAndWait(*feed_);
  EXPECT_TRUE(slow.link->hung_up);
  EXPECT_OK(group_->OnDone(slow.id, task.task, OkStatus())) << "it has not seen the hang-up yet";
  EXPECT_FALSE(group_->OnHungUp(slow.id));
  EXPECT_EQ(group_->Attach(std::make_shared<PlayedProcess>(), 1).status().code(), Code::kUnavailable);
  feeds_.clear();
  feed_.reset();
}

TEST_F(FeedProcessesTest, NoBatchIsDealtBeforeAnOlderOne) {
  std::promise<void> prepared;
  Open(2 * kBatchSize, 3, 1, {.slot_0_prepared = prepared.get_future().share()});
  const Attached only = Start();
  EXPECT_EQ(only.link->count(), 0U) << "batch 1 is ready to be dealt";
  prepared.set_value();
  for (uint64_t batch = 0; batch < 2; ++batch) {
    const ProducerTask task = Await(*only.link);
    EXPECT_EQ(task.batch_index, batch);
    FillAndReport(only, task);
    ExpectBatch(0, batch);
  }
}

TEST_F(FeedProcessesTest, NumberOfProducersIsLimited) {
  Open(kBatchSize, 3, 1);
  for (size_t i = 0; i < ProducerGroup::kMaxProducers; ++i) {
    EXPECT_OK(group_->CheckRoom(0));
    Start();
  }
  EXPECT_EQ(group_->Attach(std::make_shared<PlayedProcess>(), 1).status().code(), Code::kResourceExhausted);
}

// Processes on threads of their own, which end now and then in the midst of a batch.
TEST_F(FeedProcessesTest, EveryBatchComesOnceThroughManyDeaths) {
  constexpr uint64_t kEpochs = 20;
  Open(103, 5, kEpochs);
  std::atomic<bool> over{false};
  std::atomic<uint64_t> next_victim{3};  // a batch kills one process at most
  std::vector<std::thread> processes;
  for (uint32_t i = 0; i < 4; ++i) {
    processes.emplace_back([&, i] {
      std::mt19937 random(i);
      Attached self = Start(static_cast<pid_t>(i));
      while (!over.load()) {
        const std::optional<ProducerTask> task = self.link->Take();
        if (!task) {
          std::this_thread::yield();
          continue;
        }
        Fill(*task);
        const uint64_t batch = task->epoch * 26 + task->batch_index;
        uint64_t victim = next_victim.load();
        if (batch >= victim && next_victim.compare_exchange_strong(victim, batch + 1 + random() % 8)) {
          group_->OnEnded(self.id);
          self = Start(static_cast<pid_t>(i));
        } else {
          EXPECT_OK(group_->OnDone(self.id, task->task, OkStatus()));
        }
      }
    });
  }
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (uint64_t batch = 0; batch < 26; ++batch) ExpectBatch(epoch, batch);
  }
  EXPECT_FALSE(client_->Next());
  EXPECT_EQ(client_->state(), FeedState::kEnded);
  EXPECT_GT(group_->counts().dealt_again, 0U);
  over = true;
  for (std::thread& process : processes) process.join();
}

}  // namespace
}  // namespace pinfeed
