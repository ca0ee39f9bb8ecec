// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode/engine_calls.h"

#include <algorithm>
#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(EngineCallsTest, AsManyThreadsAsAllowedAreInTheirCallsAtOnceAndNoMore) {
  constexpr int kThreads = 3 * EngineCalls::kAtOnce;
  EngineCalls calls;
  std::barrier<> all_allowed(EngineCalls::kAtOnce);
  Mutex mutex;
  int within = 0;
  int most = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const EngineCalls::Scope call(calls);
      {
        const MutexLock lock(mutex);
        most = std::max(most, ++within);
      }
      all_allowed.arrive_and_wait();  // for ever, if one alone were allowed
      const MutexLock lock(mutex);
      --within;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, EngineCalls::kAtOnce);
}

TEST(EngineCallsTest, CallsOfOtherGpusAreNotWaitedFor) {
  std::vector<std::unique_ptr<EngineCalls::Scope>> of_first;
  for (int i = 0; i < EngineCalls::kAtOnce; ++i)
    of_first.push_back(std::make_unique<EngineCalls::Scope>(EngineCalls::Of(0)));
  const EngineCalls::Scope of_second(EngineCalls::Of(1));
  EXPECT_EQ(&EngineCalls::Of(0), &EngineCalls::Of(0));
}

}  // namespace
}  // namespace pinfeed
