// SPDX-License-Identifier: Apache-2.0
// A task for the pool's tests: counts how often each sample is run.
#pragma once

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <utility>
#include <vector>

#include "server/loading/worker_pool.h"
#include "tests/support/testing.h"

namespace pinfeed {

class CountingTask final : public FillTask {
 public:
  CountingTask(std::shared_ptr<FeedShare> share, uint32_t samples, uint32_t chunk_samples,
               std::function<void(uint32_t)> run, std::function<void()> done, uint64_t order = 0)
      : FillTask(std::move(share), samples, chunk_samples, order),
        runs_(samples),
        run_(std::move(run)),
        done_(std::move(done)) {}
  void Run(uint32_t begin, uint32_t end, SampleScratch& /*scratch*/) override {
    for (uint32_t i = begin; i < end; ++i) {
      runs_[i].fetch_add(1);
      if (run_) run_(i);
    }
  }
  void Done() override {
    for (const auto& count : runs_) EXPECT_EQ(count.load(), 1U);
    done_();
  }

 private:
  std::vector<std::atomic<uint32_t>> runs_;
  std::function<void(uint32_t)> run_;
  std::function<void()> done_;
};

// Returns once so many threads were inside one task at once. `submit`: gives it to the pool.
template <typename Submit>
void MeetInOneTask(const std::shared_ptr<FeedShare>& share, uint32_t threads, const Submit& submit) {
  std::latch all_in(threads);
  std::latch done(1);
  submit(std::make_shared<CountingTask>(
      share, threads, 1, [&](uint32_t) { all_in.arrive_and_wait(); }, [&] { done.count_down(); }));
  done.wait();
}

}  // namespace pinfeed
