// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "server/loading/sample_buffers.h"
#include "server/loading/worker_pool.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

// Purpose: sees how large a worker's buffer is, and has it take memory.
class BufferTask final : public FillTask {
 public:
  explicit BufferTask(std::promise<size_t>& bytes)
      : FillTask(std::make_shared<FeedShare>(), 1, 1), bytes_(bytes) {}
  void Run(uint32_t /*begin*/, uint32_t /*end*/, SampleScratch& scratch) override {
    bytes_.set_value(scratch.buffers().encoded.capacity());
    scratch.buffers().encoded.resize(kBytes);
  }
  void Done() override {}
  static constexpr size_t kBytes = 4096;

 private:
  std::promise<size_t>& bytes_;
};

size_t BytesOfBuffer(WorkerPool& pool) {
  std::promise<size_t> bytes;
  pool.Submit(std::make_shared<BufferTask>(bytes));
  return bytes.get_future().get();
}

TEST(IdleWorkerTest, AWorkerKeepsItsBuffersFromSampleToSample) {
  WorkerPool pool(1, UINT32_MAX, PoolKind::kWorkers, std::chrono::hours(1));
  pool.Start();
  EXPECT_EQ(BytesOfBuffer(pool), 0U);
  EXPECT_EQ(BytesOfBuffer(pool), BufferTask::kBytes);
}

TEST(IdleWorkerTest, AWorkerThatStaysIdleGivesItsBuffersBack) {
  WorkerPool pool(1, UINT32_MAX, PoolKind::kWorkers, std::chrono::milliseconds(1));
  pool.Start();
  EXPECT_EQ(BytesOfBuffer(pool), 0U);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  bool gave_back = false;
  while (!gave_back && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the pool must have nothing to do
    gave_back = BytesOfBuffer(pool) == 0;
  }
  EXPECT_TRUE(gave_back);
}

}  // namespace
}  // namespace pinfeed
