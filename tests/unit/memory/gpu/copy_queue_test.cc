// SPDX-License-Identifier: Apache-2.0
// The order of a copy thread's jobs, and what becomes of them when the GPU fails.
#include "server/memory/gpu/copy_queue.h"

#include <optional>
#include <string>
#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

class CopyQueueTest : public ::testing::Test {
 protected:
  // A job that writes its name when it is done, with a "!" if it has failed.
  CopyJob Job(const std::string& name) {
    return {{}, [this, name](const Status& status, CopyTime) {
              done_.push_back(name + (status.ok() ? "" : "!"));
            }};
  }
  void FinishNext() {
    bool closed = false;
    std::optional<CopyQueue::WaitingJob> next = queue_.Take(closed);
    ASSERT_TRUE(next);
    next->job.done(OkStatus(), {});
  }

  CopyQueue queue_;
  std::vector<std::string> done_;
};

TEST_F(CopyQueueTest, LanesTakeTurns) {
  CopyQueue::Lane busy(queue_);
  CopyQueue::Lane other(queue_);
  for (const char* name : {"a1", "a2", "a3", "a4"}) busy.Submit(Job(name));
  for (const char* name : {"b1", "b2"}) other.Submit(Job(name));
  for (int i = 0; i < 6; ++i) FinishNext();
  EXPECT_EQ(done_, (std::vector<std::string>{"a1", "b1", "a2", "b2", "a3", "a4"}));
  bool closed = true;
  EXPECT_FALSE(queue_.Take(closed));
  EXPECT_FALSE(closed);
  EXPECT_FALSE(queue_.WaitingSince());
}

TEST_F(CopyQueueTest, FailureReturnsWhatWaitsAndFailsWhatComes) {
  CopyQueue::Lane first(queue_);
  CopyQueue::Lane second(queue_);
  first.Submit(Job("a"));
  second.Submit(Job("b"));
  const auto waiting = queue_.Fail(Unavailable("the GPU is lost"));
  ASSERT_TRUE(waiting);
  EXPECT_EQ(waiting->size(), 2U);
  EXPECT_TRUE(done_.empty());
  first.Submit(Job("c"));
  EXPECT_EQ(done_, std::vector<std::string>{"c!"});
  EXPECT_FALSE(queue_.Fail(Unavailable("again")));
}

}  // namespace
}  // namespace pinfeed
