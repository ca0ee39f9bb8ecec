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

TEST(IdleWorkerTest, AWorkerThatStaysIdleGivesItsBuffersBack) {
  WorkerPool pool(1);
  pool.Start();
  const auto bytes_of_buffer = [&] {
    std::promise<size_t> bytes;
    pool.Submit(std::make_shared<BufferTask>(bytes));
    return bytes.get_future().get();
  };
  EXPECT_EQ(bytes_of_buffer(), 0U);
  EXPECT_EQ(bytes_of_buffer(), BufferTask::kBytes);
  int tries = 0;  // a busy host may need more than one
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  } while (bytes_of_buffer() != 0 && ++tries < 10);
  EXPECT_LT(tries, 10);
}

}  // namespace
}  // namespace pinfeed
