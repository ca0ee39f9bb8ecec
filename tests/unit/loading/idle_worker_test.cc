// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>

#include <chrono>
#include <latch>
#include <memory>
#include <thread>
#include <utility>

#include "server/loading/sample_buffers.h"
#include "server/loading/worker_pool.h"
#include "tests/support/testing.h"
#include "tests/unit/loading/counting_task.h"

namespace pinfeed {
namespace {

// Purpose: has the worker's buffers take memory.
class BufferTask final : public FillTask {
 public:
  explicit BufferTask(std::latch& done) : FillTask(std::make_shared<FeedShare>(), 1, 1), done_(done) {}
  void Run(uint32_t /*begin*/, uint32_t /*end*/, SampleScratch& scratch) override {
    scratch.buffers().encoded.resize(kBytes);
  }
  void Done() override { done_.count_down(); }
  static constexpr size_t kBytes = size_t{64} << 20;

 private:
  std::latch& done_;
};

TEST(WorkerPoolTest, AWorkerThatStaysIdleGivesItsBuffersBack) {
  if (::mallinfo2().arena == 0) GTEST_SKIP() << "a sanitizer replaces the allocator";
  WorkerPool pool(1);
  pool.Start();
  const size_t before = ::mallinfo2().hblkhd;
  std::latch done(1);
  pool.Submit(std::make_shared<BufferTask>(done));
  done.wait();
  EXPECT_GE(::mallinfo2().hblkhd, before + BufferTask::kBytes);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (::mallinfo2().hblkhd >= before + BufferTask::kBytes && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_LT(::mallinfo2().hblkhd, before + BufferTask::kBytes);
  MeetInOneTask(std::make_shared<FeedShare>(), 1, [&](auto task) { pool.Submit(std::move(task)); });
}

}  // namespace
}  // namespace pinfeed
