// SPDX-License-Identifier: Apache-2.0
// How many batches the caller holds, as pf_next_info tells it, and what the daemon hears of copied ones.
#include <array>

#include "pinfeed/pinfeed.hpp"
#include "tests/support/testing.h"
#include "tests/unit/client/client_fake_daemon.h"

namespace pinfeed {
namespace {

TEST(ClientHeldTest, HeldBatchesAreToldWithEachBatchAndCopiedOnesToTheDaemon) {
  const TempDir dir;
  FakeDaemon daemon(dir.path(), {});
  FeedOptions options;
  options.address = daemon.address();
  Feed feed(R"({"dataset": {"path": "/data"}, "batch_size": 4})", options);
  FakeSession& session = daemon.Session(0);
  std::array<pf_batch*, 3> batches{};
  pf_batch_info info;
  pf_batch_info_init(&info, sizeof(info));
  const auto next_held = [&](size_t number) {
    session.Publish();
    EXPECT_EQ(pf_next_info(feed.get(), -1, &batches[number], &info), PF_OK);
    return info.held;
  };
  EXPECT_EQ(next_held(0), 1U);
  EXPECT_EQ(next_held(1), 2U);
  pf_batch_release(batches[0]);
  EXPECT_EQ(next_held(2), 2U);
  EXPECT_EQ(session.release_page().copied.load(), 0U);
  for (const uint64_t count : {1U, 2U}) {
    EXPECT_EQ(pf_count_copied(feed.get()), PF_OK);
    EXPECT_EQ(session.release_page().copied.load(), count);
  }
  EXPECT_EQ(pf_count_copied(nullptr), PF_INVALID_ARGUMENT);
  pf_batch_release(batches[1]);
  pf_batch_release(batches[2]);
}

}  // namespace
}  // namespace pinfeed
