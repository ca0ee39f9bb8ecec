// SPDX-License-Identifier: Apache-2.0
#include "client/copies/helper_threads.h"

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <latch>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(HelperThreadsTest, RunsOnTheCallerAndOnAsManyHelpersAsAreWanted) {
  HelperThreads helpers(3);
  std::latch all(3);  // nobody leaves before three are in
  Mutex mutex;
  std::set<std::thread::id> seen;
  helpers.Run(2, [&] {
    {
      const MutexLock lock(mutex);
      seen.insert(std::this_thread::get_id());
    }
    all.arrive_and_wait();
  });
  EXPECT_EQ(seen.size(), 3U);
  EXPECT_EQ(seen.count(std::this_thread::get_id()), 1U);
}

TEST(HelperThreadsTest, ReturnsOnlyWhenNoThreadIsInTheBody) {
  HelperThreads helpers(2);
  for (int round = 0; round < 500; ++round) {
    std::atomic<int> inside{0};
    std::atomic<int> left{10};
    helpers.Run(2, [&] {
      ++inside;
      while (left.fetch_sub(1) > 0) std::this_thread::yield();
      --inside;
    });
    ASSERT_EQ(inside.load(), 0);
    ASSERT_LE(left.load(), 0);
  }
}

TEST(HelperThreadsTest, CallersShareTheHelpers) {
  HelperThreads helpers(2);
  std::atomic<int> done{0};
  std::vector<std::jthread> callers;  // joined below
  callers.reserve(4);
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        std::atomic<int> left{20};
        helpers.Run(2, [&] {
          while (left.fetch_sub(1) > 0) done.fetch_add(1);
        });
      }
    });
  }
  callers.clear();
  EXPECT_EQ(done.load(), 4 * 100 * 20);
}

TEST(HelperThreadsTest, WithoutHelpersTheCallerDoesItAll) {
  HelperThreads helpers(0);
  int calls = 0;
  helpers.Run(5, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(HelperThreadsTest, HelpersThatCannotBeStartedAreDoneWithout) {
  pthread_attr_t usual;
  pthread_attr_t too_large;
  ASSERT_EQ(::pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(::pthread_getattr_default_np(&too_large), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&too_large, size_t{1} << 47), 0);  // all addresses
  HelperThreads helpers(2);
  int calls = 0;
  ASSERT_EQ(::pthread_setattr_default_np(&too_large), 0);
  helpers.Run(2, [&] { ++calls; });
  ASSERT_EQ(::pthread_setattr_default_np(&usual), 0);
  EXPECT_EQ(calls, 1);
  std::latch all(3);
  helpers.Run(2, [&] { all.arrive_and_wait(); });  // now they can
  (void)::pthread_attr_destroy(&usual);
  (void)::pthread_attr_destroy(&too_large);
}

TEST(HelperThreadsTest, HelpersTakeNoSignalsOfTheHostProgram) {
  HelperThreads helpers(1);
  std::latch both(2);
  std::atomic<int> blocked{0};
  helpers.Run(1, [&] {
    sigset_t mask;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    if (::sigismember(&mask, SIGINT) == 1) ++blocked;
    both.arrive_and_wait();
  });
  EXPECT_EQ(blocked.load(), 1);
}

}  // namespace
}  // namespace pinfeed
