// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <set>
#include <thread>
#include <vector>

#include "client/src/base/client_log.h"
#include "client/src/feed/batch.h"
#include "client/src/link/tls_channel.h"
#include "tests/support/log_capture.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(BatchPoolTest, AReleasedBatchIsReusedOnlyAfter255OthersWereReleased) {
  BatchPool& pool = BatchPool::Process();
  const auto take = [&](size_t count) {
    std::vector<Batch*> taken;
    while (taken.size() < count) taken.push_back(pool.Take(nullptr, {}));
    return taken;
  };
  size_t many = 500;
  for (const size_t others : {254U, 255U}) {
    many *= 2;  // more than the pool has
    const std::vector<Batch*> released = take(1 + others);
    for (Batch* const batch : released) pool.Return(batch);
    const std::vector<Batch*> held = take(many);
    EXPECT_EQ(std::set<Batch*>(held.begin(), held.end()).size(), held.size());
    EXPECT_EQ(std::count(held.begin(), held.end(), released.front()), others == 255 ? 1 : 0);
    for (Batch* const batch : held) pool.Return(batch);
  }
}

TEST(BatchPoolTest, NoChildInheritsALockOfAThreadThatItLacks) {
  const LogCapture log;
  std::atomic<bool> stop{false};
  const auto use = [] {
    BatchPool::Process().Return(BatchPool::Process().Take(nullptr, {}));
    SetTls({});
    ClientLog(PF_LOG_INFO, "");
  };
  std::thread other([&] {
    const LibraryThread library_thread;
    while (!stop) use();
  });
  for (int i = 0; i < 50; ++i) {
    const int exit_status = ExitStatusOfFork([&] {
      ::alarm(20);  // ends it
      const LibraryThread library_thread;
      use();
      return 0;
    });
    EXPECT_EQ(exit_status, 0) << "it hung";
  }
  stop = true;
  other.join();
  PassOnLog();
}

}  // namespace
}  // namespace pinfeed
