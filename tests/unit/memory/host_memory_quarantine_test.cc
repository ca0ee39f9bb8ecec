// SPDX-License-Identifier: Apache-2.0
#include "server/memory/host_memory_quarantine.h"

#include <fcntl.h>

#include <cstdint>
#include <future>
#include <memory>
#include <utility>

#include "common/os/memfd.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(HostMemoryQuarantineTest, MemoryIsFreedBeforeItsChargeAndWhatWaitsForBoth) {
  MemoryBudget pool(1 << 20);
  const UniqueFd made = CreateEmptyMemfd("test", 4096).value();
  UniqueFd kept = ReopenMemfd(made.get(), Access::kReadWrite).value();
  std::promise<std::pair<bool, uint64_t>> freed;  // whether the descriptor was closed; what was charged
  std::shared_ptr<void> until_free(nullptr, [&, fd = kept.get()](void*) {
    freed.set_value({::fcntl(fd, F_GETFD) == -1, pool.used_bytes()});
  });
  HostMemoryQuarantine quarantine;
  quarantine.Add(std::move(kept), pool.Reserve(4096).value(), std::move(until_free));
  EXPECT_EQ(freed.get_future().get(), std::pair(true, uint64_t{0}));
}

}  // namespace
}  // namespace pinfeed
