// SPDX-License-Identifier: Apache-2.0
// Feeds whose processes take too long, whose trainers leave, or that several trainers share: no late write
// reaches a batch.
#include <set>
#include <vector>

#include "tests/unit/feed/feed_processes_fixture.h"

namespace pinfeed {
namespace {

class FeedLateProcessesTest : public FeedProcessesTest {
 protected:
  // Three producers are late with batch 0, and one of them finishes it, while the others go on.
  void ExpectBatchOf(size_t winner, Sharing sharing) {
    Open(2 * kBatchSize, 6, 1, {.task_timeout_ms = 1, .sharing = sharing});
    std::vector<Attached> slow;
    std::vector<ProducerTask> tasks;
    for (uint64_t i = 0; i < 3; ++i) {
      slow.push_back(Start(static_cast<pid_t>(i)));
      tasks.push_back(Await(*slow.back().link));
      EXPECT_EQ(tasks.back().batch_index, 0U);
      if (i == 2) break;
      AwaitReplaced(slow.back(), i + 1);
      WaitFor([&] { return group_->counts().waiting == 2; });
    }
    BecomeLate();
    group_->ReplaceLate(slow.back().id);
    EXPECT_EQ(group_->counts().dealt_again, 2U) << "it is no use";
    FillAndReport(slow[winner], tasks[winner]);
    WaitFor([&] { return client_->ready() > 0; });
    for (size_t i = 0; i < 3; ++i)
      if (i != winner) Scribble(tasks[i]);
    ExpectBatch(0, 0);
    EXPECT_EQ(feed_->Snapshot().slots_filling, 3U) << "two of batch 0 still, and that of batch 1";
    for (size_t i = 0; i < 3; ++i)
      if (i != winner) FillAndReport(slow[i], tasks[i]);
    FillUntilReady({&slow[0], &slow[1], &slow[2]});
    ExpectBatch(0, 1);
    EXPECT_FALSE(client_->Next());
    WaitFor([&] { return feed_->Snapshot().slots_filling == 0; });
  }
};

TEST_F(FeedLateProcessesTest, BatchOfALateProducerIsFilledInAnotherSlot) {
  Open(100, 4, 0, {.task_timeout_ms = 1});
  const Attached late = Start(7);
  const ProducerTask begun = Await(*late.link);
  AwaitReplaced(late, 1);
  const Attached other = Start(8);
  for (uint64_t batch = 0; batch < 12; ++batch) {
    EXPECT_FALSE(FillUntilReady({&other}).contains(begun.slot));
    Scribble(begun);
    ExpectBatch(0, batch);
  }
  EXPECT_EQ(late.link->count(), 0U);
  // It fills it in the end. That gives no batch, and it gets tasks again.
  FillAndReport(late, begun);
  std::set<uint32_t> slots;
  for (uint64_t batch = 12; batch < 20; ++batch) {
    slots.merge(FillUntilReady({&late, &other}));
    ExpectBatch(0, batch);
  }
  EXPECT_TRUE(slots.contains(begun.slot));
}

TEST_F(FeedLateProcessesTest, SlotOfALateProducerIsFreeOnceItsProcessEnded) {
  Open(100, 4, 0, {.task_timeout_ms = 1});
  const Attached late = Start(7);
  const ProducerTask begun = Await(*late.link);
  AwaitReplaced(late, 1);
  const Attached other = Start(8);
  std::set<uint32_t> slots;
  const auto serve = [&](uint64_t begin, uint64_t end) {
    for (uint64_t batch = begin; batch < end; ++batch) {
      slots.merge(FillUntilReady({&other}));
      ExpectBatch(0, batch);
    }
  };
  serve(0, 10);
  EXPECT_FALSE(slots.contains(begun.slot));
  EXPECT_TRUE(group_->OnHungUp(late.id));
  group_->OnEnded(late.id);
  EXPECT_EQ(group_->counts().dealt_again, 1U) << "its batch was published long ago";
  serve(10, 20);
  EXPECT_TRUE(slots.contains(begun.slot));
}

TEST_F(FeedLateProcessesTest, LateBatchWaitsUntilASlotIsFree) {
  Open(100, 3, 0, {.task_timeout_ms = 1});
  const Attached first = Start(7);
  const ProducerTask of_first = Await(*first.link);
  const Attached second = Start(8);
  const ProducerTask of_second = Await(*second.link);
  BecomeLate();
  group_->ReplaceLate(second.id);  // the last slot is for the oldest batch
  EXPECT_EQ(group_->counts().dealt_again, 0U);
  AwaitReplaced(first, 1);
  group_->ReplaceLate(second.id);  // there is no slot left
  EXPECT_EQ(group_->counts().dealt_again, 1U);
  const Attached other = Start(9);
  FillUntilReady({&other});
  ExpectBatch(0, 0);
  AwaitReplaced(second, 2);
  FillUntilReady({&other});
  Scribble(of_first);
  Scribble(of_second);
  ExpectBatch(0, 1);
}

TEST_F(FeedLateProcessesTest, BatchThatIsSlowForAllComesFromTheFirstProducer) {
  ExpectBatchOf(0, Sharing::kExclusive);
}

TEST_F(FeedLateProcessesTest, BatchThatIsSlowForAllComesFromTheSecondProducer) {
  ExpectBatchOf(1, Sharing::kExclusive);
}

TEST_F(FeedLateProcessesTest, BatchThatIsSlowForAllComesFromTheThirdProducer) {
  ExpectBatchOf(2, Sharing::kExclusive);
}

TEST_F(FeedLateProcessesTest, SlowBatchOfASharedFeedComesFromTheFirstToFinish) {
  ExpectBatchOf(0, Sharing::kBroadcast);
}

TEST_F(FeedLateProcessesTest, LateBatchThatNobodyElseHasBegunIsNotBegunAgain) {
  Open(4 * kBatchSize, 4, 1, {.task_timeout_ms = 1});
  const Attached late = Start(7);
  const ProducerTask begun = Await(*late.link);
  AwaitReplaced(late, 1);
  FillAndReport(late, begun);
  ExpectBatch(0, 0);
  for (uint64_t batch = 1; batch < 4; ++batch) {
    const ProducerTask task = Await(*late.link);
    EXPECT_EQ(task.batch_index, batch);
    FillAndReport(late, task);
    ExpectBatch(0, batch);
  }
  EXPECT_FALSE(client_->Next());
  // The memory of the slot that it was moved to may just be prepared.
  WaitFor([&] { return feed_->Snapshot().slots_filling == 0; });
}

TEST_F(FeedLateProcessesTest, EndOfALateProducerGivesNoBatch) {
  Open(100, 4, 0, {.task_timeout_ms = 1});
  const Attached late = Start(7);
  Scribble(Await(*late.link));
  AwaitReplaced(late, 1);
  ASSERT_TRUE(group_->OnHungUp(late.id));
  group_->OnEnded(late.id);
  EXPECT_EQ(client_->ready(), 0U);
  const Attached other = Start(8);
  FillUntilReady({&other});
  ExpectBatch(0, 0);
}

TEST_F(FeedLateProcessesTest, ErrorOfALateProducerFailsNothing) {
  Open(100, 4, 0, {.task_timeout_ms = 1});
  const Attached late = Start(7);
  const ProducerTask begun = Await(*late.link);
  AwaitReplaced(late, 1);
  EXPECT_OK(group_->OnDone(late.id, begun.task, Status(Code::kUnknown, "out of paper")));
  FillUntilReady({&late});
  ExpectBatch(0, 0);
}

TEST_F(FeedLateProcessesTest, BatchOfALateProducerIsThereThoughAnotherSaysThatTheDataEndBeforeIt) {
  Open(2 * kBatchSize, 4, 1, {.task_timeout_ms = 1});
  const Attached late = Start(7);
  const ProducerTask begun = Await(*late.link);
  AwaitReplaced(late, 1);
  WaitFor([&] { return group_->counts().waiting == 2; });
  const Attached other = Start(8);
  const ProducerTask again = Await(*other.link);
  EXPECT_EQ(again.batch_index, 0U);
  EXPECT_OK(group_->OnDone(other.id, again.task, Status(Code::kOutOfRange, "there is none")));
  EXPECT_EQ(group_->state().data_end, "batch 0 of epoch 0");
  FillAndReport(late, begun);
  EXPECT_EQ(group_->state().data_end, "");
  ExpectBatch(0, 0);
  FillUntilReady({&late, &other});
  ExpectBatch(0, 1);
  WaitFor([&] { return feed_->Snapshot().slots_filling == 0; });
}

TEST_F(FeedLateProcessesTest, StopWaitsForNoLateProducer) {
  Open(100, 4, 0, {.task_timeout_ms = 1});
  const Attached late = Start(7);
  const ProducerTask begun = Await(*late.link);
  AwaitReplaced(late, 1);
  feed_->Depart(client_->participant(), Ended());
  StopAndWait(*feed_);
  group_->ReplaceLate(late.id);
  EXPECT_OK(group_->OnDone(late.id, begun.task, OkStatus()));
  feeds_.clear();
  feed_.reset();
}

TEST_F(FeedLateProcessesTest, ProducersOfASharedFeedWriteToNoSlot) {
  Open(100, 3, 0, {.sharing = Sharing::kBroadcast});
  const Attached process = Start();
  for (uint64_t batch = 0; batch < 10; ++batch) {
    const ProducerTask task = Await(*process.link);
    FillAndReport(process, task);
    WaitFor([&] { return client_->ready() > 0; });
    Scribble(task);
    ExpectBatch(0, batch);
  }
  EXPECT_EQ(feed_->Snapshot().staged_bytes, 10 * kBatchSize * NumberDataset::kNumbers * sizeof(int64_t));
}

TEST_F(FeedLateProcessesTest, CopyToASlotAsksForNoMemory) {
  Open(2 * kBatchSize, 3, 1, {.sharing = Sharing::kBroadcast, .prepares_once = true});
  const Attached process = Start();
  for (uint64_t batch = 0; batch < 2; ++batch) {
    FillAndReport(process, Await(*process.link));
    ExpectBatch(0, batch);
  }
}

TEST_F(FeedLateProcessesTest, DismissedProducerFinishesItsTaskAndGetsNoOther) {
  Open(100, 3);
  const Attached leaving = Start();
  const ProducerTask last = Await(*leaving.link);
  group_->Dismiss(leaving.id);
  EXPECT_TRUE(leaving.link->tasks_ended);
  FillAndReport(leaving, last);
  ExpectBatch(0, 0);
  EXPECT_FALSE(group_->OnHungUp(leaving.id));
  EXPECT_EQ(leaving.link->count(), 0U);
  const Attached other = Start();
  for (uint64_t batch = 1; batch < 5; ++batch) {
    FillAndReport(other, Await(*other.link));
    ExpectBatch(0, batch);
  }
}

}  // namespace
}  // namespace pinfeed
