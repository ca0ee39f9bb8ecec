// SPDX-License-Identifier: Apache-2.0
// When a feed wakes its client, and when it wants to be woken.
#include <chrono>
#include <semaphore>

#include "common/os/futex.h"
#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

class FeedDoorbellTest : public FeedTest {
 protected:
  FeedDoorbellTest() : FeedTest(Producer::kNative) {}
};

TEST_F(FeedDoorbellTest, ClientThatSleepsIsWokenByEachBatch) {
  constexpr std::chrono::seconds kLong(30);
  const auto feed = Make(Spec(8), std::make_shared<NumberDataset>(1000));
  AttachedClient client(*feed);
  for (int i = 0; i < 2000; ++i) {
    for (;;) {
      const uint32_t seen = client.page().wake.load(std::memory_order_acquire);
      if (client.ready() > 0) break;
      const auto began = std::chrono::steady_clock::now();
      FutexWait(client.page().wake, seen, kLong);
      ASSERT_LT(std::chrono::steady_clock::now() - began, kLong);
    }
    client.Release(*client.Next(), *feed);
  }
}

// The fixture has three workers, each of which fills a batch by itself.
TEST_F(FeedDoorbellTest, IsNotWantedWhileEveryWorkerHasABatchToFill) {
  constexpr uint32_t kBatch = 8;
  constexpr uint32_t kSlots = 4;
  std::counting_semaphore<> may_read(0);
  const auto read = [&](uint64_t) { may_read.acquire(); };
  const auto feed =
      Make(Spec(kBatch), std::make_shared<NumberDataset>(1000, std::set<uint64_t>{}, read), kSlots);
  AttachedClient client(*feed);
  EXPECT_EQ(client.page().starved.load(), 0U);

  may_read.release(kSlots * kBatch);
  WaitFor([&] { return client.ready() == kSlots; });
  WaitFor([&] { return client.page().starved.load() == 1; });
  for (const uint32_t wanted : {1U, 1U, 0U}) {
    client.Release(*client.Next(), *feed);
    EXPECT_EQ(client.page().starved.load(), wanted);
  }
  client.Release(*client.Next(), *feed);  // rings no more: a batch that is filled has it read

  may_read.release(kSlots * kBatch);
  WaitFor([&] { return client.ready() == kSlots; });
}

}  // namespace
}  // namespace pinfeed
