// SPDX-License-Identifier: Apache-2.0
#include "server/memory/one_off_memory.h"

#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "common/os/memfd.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(OneOffMemoryTest, MemoryIsChargedUntilNoProcessHasIt) {
  MemoryBudget pool(1 << 20);
  HostMemoryQuarantine users;
  OneOffMemory memory(pool, users, 7);
  const auto await_none = [&] {
    users.AwaitNone(std::chrono::steady_clock::now() + std::chrono::seconds(30));
  };
  UniqueFd first = memory.Grant(5000).value();
  UniqueFd second = memory.Grant(4096).value();
  EXPECT_OK(CheckSealedSize(first.get(), 5000));
  EXPECT_EQ(pool.used_by_user(), (std::map<uid_t, uint64_t>{{7, 8192 + 4096}})) << "whole pages";
  EXPECT_EQ(memory.counts().bytes, 8192U + 4096U);
  Mapping mapped = Mapping::Map(second.get(), 4096, Access::kReadWrite, true).value();
  first.reset();
  second.reset();
  while (memory.counts().bytes != 4096) std::this_thread::yield();  // under the watchdog
  EXPECT_EQ(pool.used_bytes(), 4096U) << "it is mapped";
  mapped = Mapping();
  await_none();
  EXPECT_EQ(pool.used_bytes(), 0U);
  EXPECT_EQ(memory.counts().bytes, 0U);
  EXPECT_EQ(memory.counts().batches, 2U);
  EXPECT_EQ(memory.counts().peak_bytes, 8192U + 4096U);
}

TEST(OneOffMemoryTest, GrantsOutliveTheirFeed) {
  MemoryBudget pool(1 << 20);
  HostMemoryQuarantine users;
  UniqueFd kept = OneOffMemory(pool, users, 7).Grant(4096).value();
  EXPECT_EQ(pool.used_bytes(), 4096U);
  kept.reset();
  users.AwaitNone(std::chrono::steady_clock::now() + std::chrono::seconds(30));
  EXPECT_EQ(pool.used_bytes(), 0U);
}

TEST(OneOffMemoryTest, NoUserGetsMoreThanTheirPart) {
  MemoryBudget pool(1 << 20, 1 << 16, MemoryBudget::Names());
  HostMemoryQuarantine users;
  OneOffMemory memory(pool, users, 7);
  const UniqueFd half = memory.Grant(1 << 15).value();
  for (const uint64_t bytes : {(uint64_t{1} << 15) + 1, (uint64_t{1} << 20) + 1, UINT64_MAX}) {
    const Status refused = memory.Grant(bytes).status();
    EXPECT_EQ(refused.code(), Code::kResourceExhausted) << bytes;
    EXPECT_LE(refused.message().size(), 200U) << refused.message();
  }
  EXPECT_EQ(pool.used_bytes(), uint64_t{1} << 15);
  EXPECT_EQ(memory.counts().batches, 1U);
}

TEST(OneOffMemoryTest, NumberOfGrantsIsLimited) {
  MemoryBudget pool(1 << 20);
  HostMemoryQuarantine users;
  OneOffMemory memory(pool, users, 7);
  std::vector<UniqueFd> all;
  for (uint32_t i = 0; i < OneOffMemory::kMaxGrants; ++i) all.push_back(memory.Grant(1).value());
  EXPECT_EQ(memory.Grant(1).status().code(), Code::kResourceExhausted);
  all.clear();
  users.AwaitNone(std::chrono::steady_clock::now() + std::chrono::seconds(30));
  EXPECT_OK(memory.Grant(1).status());
}

}  // namespace
}  // namespace pinfeed
