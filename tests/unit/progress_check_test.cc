// SPDX-License-Identifier: Apache-2.0
#include "server/pipeline/progress_check.h"

#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "tests/testing.h"

namespace pinfeed {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class GatedTask final : public FillTask {
 public:
  explicit GatedTask(std::latch& gate) : FillTask(std::make_shared<FeedShare>(), 1, 1), gate_(gate) {}
  void Run(uint32_t /*begin*/, uint32_t /*end*/, SampleScratch& /*scratch*/) override { gate_.wait(); }
  void Done() override {}

 private:
  std::latch& gate_;
};

// Two GPUs, of which one has not ended a copy for so long.
std::vector<GpuSnapshot> Gpus(milliseconds stalled) {
  GpuSnapshot well;
  well.uuid = "GPU-well";
  GpuSnapshot ill;
  ill.uuid = "GPU-ill";
  ill.stalled = stalled;
  return {well, ill};
}

// The state is another thread's matter and comes soon; the test's own time limit is the watchdog.
std::string Await(ProgressCheck& check, bool stuck) {
  while (true) {
    std::string found = check.Stuck();
    if (found.empty() != stuck) return found;
    std::this_thread::yield();
  }
}

TEST(ProgressCheckTest, ABlockedWorkerIsStuckUntilItMoves) {
  std::latch gate(1);
  WorkerPool pool(2);
  pool.Start();
  ProgressCheck check(pool, nullptr, milliseconds(1));
  EXPECT_EQ(check.Stuck(), "");  // idle
  pool.Submit(std::make_shared<GatedTask>(gate));
  EXPECT_THAT(Await(check, true), HasSubstr("a worker has been at one piece of work for 0 s"));
  gate.count_down();
  EXPECT_EQ(Await(check, false), "");
}

TEST(ProgressCheckTest, OtherWorkersDoNotHideTheOneThatIsBlocked) {
  std::latch gate(1);
  std::latch open(0);
  WorkerPool pool(2);
  pool.Start();
  ProgressCheck check(pool, nullptr, milliseconds(1));
  pool.Submit(std::make_shared<GatedTask>(gate));
  Await(check, true);
  for (int i = 0; i < 100; ++i) pool.Submit(std::make_shared<GatedTask>(open));
  while (pool.progress() < 100) std::this_thread::yield();
  EXPECT_NE(check.Stuck(), "");
  gate.count_down();
}

TEST(ProgressCheckTest, AGpuThatEndsNoCopyIsNamed) {
  const WorkerPool pool(1);
  milliseconds stalled(5000);
  ProgressCheck check(
      pool, [&] { return Gpus(stalled); }, milliseconds(5000));
  EXPECT_EQ(check.Stuck(), "");
  stalled = milliseconds(6001);
  EXPECT_EQ(check.Stuck(), "no copy to GPU-ill has ended for 6 s (stuck_timeout)");
}

TEST(ProgressCheckTest, ALimitOfZeroIsNone) {
  const WorkerPool pool(1);
  ProgressCheck check(
      pool, [] { return Gpus(std::chrono::hours(24)); }, milliseconds(0));
  EXPECT_EQ(check.Stuck(), "");
}

}  // namespace
}  // namespace pinfeed
