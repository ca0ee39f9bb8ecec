// SPDX-License-Identifier: Apache-2.0
#include "server/memory/host_arena.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/os/memfd.h"
#include "server/memory/memory_budget.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

// Returns the bytes of this process's mapping at `address` that huge pages map.
uint64_t HugeBytesAt(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream smaps("/proc/self/smaps");
  bool within = false;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t begin = 0, end = 0;
    uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) within = begin <= wanted && wanted < end;
    if (within && std::sscanf(line.c_str(), "ShmemPmdMapped: %lu kB", &kib) == 1) return kib << 10;
  }
  return 0;
}

// Huge pages are optional: a kernel may not know them, or have none left.
TEST(MemfdTest, HugePagesKeepWhatWasThere) {
  constexpr uint64_t kBytes = 3 * kHugePageBytes + 4096;
  const auto fd = CreateEmptyMemfd("huge", kBytes);
  ASSERT_TRUE(fd.ok());
  auto writable = Mapping::Map(fd->get(), kBytes, Access::kReadWrite, false);
  ASSERT_TRUE(writable.ok()) << writable.status().ToString();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(writable->data()) % kHugePageBytes, 0U);
  std::memset(writable->data() + 5, 7, kHugePageBytes);
  const bool huge = AllocateHugePage(writable->data()) && AllocateHugePage(writable->data() + kHugePageBytes);
  for (uint64_t i :
       {uint64_t{0}, uint64_t{4}, uint64_t{5}, kHugePageBytes + 4, kHugePageBytes + 5, 2 * kHugePageBytes})
    EXPECT_EQ(writable->data()[i], std::byte(i >= 5 && i < kHugePageBytes + 5 ? 7 : 0)) << i;
  if (!huge || HugeBytesAt(writable->data()) == 0) GTEST_SKIP() << "no huge pages here";
  const auto readable = Mapping::Map(fd->get(), kBytes, Access::kReadOnly, /*populate=*/true);
  ASSERT_TRUE(readable.ok());
  EXPECT_GE(HugeBytesAt(readable->data()), 2 * kHugePageBytes);
}

BatchLayout Layout(uint64_t sample_bytes, uint32_t batch_size) {
  return *BatchLayout::Create({{"data", DType::kUint8, {static_cast<int64_t>(sample_bytes)}}}, batch_size);
}

TEST(HostArenaTest, ClientCannotSealItsMemory) {
  MemoryBudget pool(1 << 20);
  const auto arena = HostArena::Create(Layout(1000, 4), 3, false, pool).value();
  EXPECT_NE(::fcntl(arena->fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
}

TEST(HostArenaTest, IsChargedToThePoolAndBackAfterwards) {
  MemoryBudget pool(16 * kSlotAlignment);
  {
    const auto arena = HostArena::Create(Layout(1000, 4), 3, false, pool);
    ASSERT_TRUE(arena.ok()) << arena.status().ToString();
    EXPECT_EQ(pool.used_bytes(), 3 * kSlotAlignment);
    EXPECT_EQ((*arena)->bytes(), 3 * kSlotAlignment);
    EXPECT_TRUE(CheckSealedSize((*arena)->fd(), (*arena)->bytes()).ok());
  }
  EXPECT_EQ(pool.used_bytes(), 0U);
}

TEST(HostArenaTest, PiecesOfManyThreadsAreWrittenWholeInHugePages) {
  constexpr uint32_t kSlots = 3, kBatch = 16;
  constexpr uint64_t kSample = kHugePageBytes / 3;  // pages belong to several samples and slots
  MemoryBudget pool(uint64_t{1} << 30);
  const auto made = HostArena::Create(Layout(kSample, kBatch), kSlots, false, pool);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  HostArena& arena = **made;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kBatch; ++i) {
    threads.emplace_back([&arena, i] {
      for (uint32_t slot = 0; slot < kSlots; ++slot) {
        const Piece piece{.slot = slot, .begin = 0, .end = kBatch};
        ASSERT_TRUE(arena.Prepare(piece, i, i + 1).ok());
        std::memset(arena.FillAddress(piece, 0) + i * kSample, static_cast<int>(slot * kBatch + i + 1),
                    kSample);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    for (uint32_t i = 0; i < kBatch; ++i) {
      const std::byte* const sample = arena.FillAddress(Piece{.slot = slot, .begin = i, .end = kBatch}, 0);
      EXPECT_TRUE(std::all_of(sample, sample + kSample,
                              [&](std::byte value) { return value == std::byte(slot * kBatch + i + 1); }))
          << slot << ' ' << i;
    }
  }
  const uint64_t huge = arena.bytes() / kHugePageBytes * kHugePageBytes;
  const auto fd = CreateEmptyMemfd("huge", huge).value();  // whether the kernel has so many
  const Mapping other = Mapping::Map(fd.get(), huge, Access::kReadWrite, false).value();
  bool possible = true;
  for (uint64_t at = 0; at < huge; at += kHugePageBytes) possible &= AllocateHugePage(other.data() + at);
  std::memset(other.data(), 1, huge);
  if (!possible || HugeBytesAt(other.data()) < huge) GTEST_SKIP() << "no huge pages here";
  // A page that the kernel could not have at once stays small.
  EXPECT_GT(HugeBytesAt(arena.FillAddress({}, 0)), huge * 3 / 4);
}

TEST(HostArenaTest, ABatchAllocatesWhatAShorterOneBeforeItDidNot) {
  constexpr uint64_t kSlot = 8 * kSlotAlignment;
  MemoryBudget pool(3 * kSlot);
  const HostMemoryLedger& ledger = HostMemoryLedger::ForThisProcess();
  const uint64_t others = ledger.reserved_bytes();
  const auto arena = HostArena::Create(Layout(kSlotAlignment, 8), 3, false, pool).value();
  // Fills a batch whose piece is the whole slot, as that of a batcher is. Returns what is reserved then.
  const auto fill = [&](uint32_t samples) {
    const Piece piece{1, 0, 8, 0};
    for (uint32_t i = samples; i-- > 0;) EXPECT_OK(arena->Prepare(piece, i, i + 1));
    arena->Deliver(piece, {0, samples, true}, [](const Status& /*status*/, const CopyTime& /*time*/) {});
    return ledger.reserved_bytes() - others;
  };
  const auto allocated = [&] {
    struct stat info {};
    EXPECT_EQ(::fstat(arena->fd(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  };
  EXPECT_OK(arena->Prepare({0, 0, 8, 0}, 0, 8));
  EXPECT_EQ(ledger.reserved_bytes() - others, 2 * kSlot) << "not delivered yet, but in use";
  EXPECT_EQ(fill(1), kSlot + 7 * kSlotAlignment);
  EXPECT_EQ(fill(3), kSlot + 5 * kSlotAlignment);
  EXPECT_EQ(allocated(), kSlot + 3 * kSlotAlignment);
  EXPECT_EQ(fill(2), kSlot + 5 * kSlotAlignment);
  EXPECT_EQ(fill(8), kSlot);
  EXPECT_EQ(allocated(), 2 * kSlot);
}

TEST(HostArenaTest, ASlotOfWhichAProcessGaveMemoryBackIsNotFilledAgain) {
  const auto layout = *BatchLayout::Create(
      {{"data", DType::kUint8, {2000}}, {"label", DType::kInt64, {}}, {"wide", DType::kUint8, {3000}}}, 100);
  for (const bool shared : {false, true}) {
    MemoryBudget pool(uint64_t{8} << 20);
    const auto arena = HostArena::Create(layout, 3, shared, pool).value();
    for (const uint32_t samples : {3U, 60U, 100U}) {  // batches may become longer
      for (uint32_t slot = 0; slot < 3; ++slot) {
        const Piece piece{slot, 0, 100, 0};
        EXPECT_OK(arena->Prepare(piece, 0, samples));
        arena->Deliver(piece, {0, samples, true}, [](const Status& /*status*/, const CopyTime& /*time*/) {});
        EXPECT_OK(arena->Prepare(piece, 0, samples));
      }
    }
    EXPECT_EQ(DiscardMemfd(arena->fd(), 64 << 10), !shared);
    for (uint32_t slot = 0; slot < 3; ++slot) {
      const Status prepared = arena->Prepare({slot, 0, 100, 0}, 0, 1);
      if (shared) {
        EXPECT_OK(prepared);
      } else {
        EXPECT_THAT(prepared, StatusIs(Code::kFailedPrecondition, HasSubstr("back to the system")));
      }
    }
  }
}

// Each first fill of a slot is seen by all, or by none, of those that check others' meanwhile.
TEST(HostArenaTest, SlotsThatAreFilledAtOnceAreNotTakenForGivenBack) {
  for (int round = 0; round < 50; ++round) {
    MemoryBudget pool(uint64_t{64} << 20);
    const auto arena = HostArena::Create(Layout(4096, 8), 64, false, pool).value();
    std::atomic<uint32_t> next{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (uint32_t slot = next++; slot < 64; slot = next++) {
          const Piece piece{slot, 0, 8, 0};
          for (int fill = 0; fill < 20; ++fill) {
            EXPECT_OK(arena->Prepare(piece, 0, 8));
            arena->Deliver(piece, {0, 8, true}, [](const Status& /*status*/, const CopyTime& /*time*/) {});
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(HostArenaTest, WhatDoesNotFitIsRefusedWithTheNumbers) {
  MemoryBudget pool(4 * kSlotAlignment);
  EXPECT_THAT(HostArena::Create(Layout(1000, 4), 5, false, pool),
              StatusIs(Code::kResourceExhausted,
                       AllOf(HasSubstr("5 slots of 4 KiB"), HasSubstr("20 KiB (20480 bytes)"),
                             HasSubstr("16 KiB (16384 bytes) in total"))));
  EXPECT_EQ(pool.used_bytes(), 0U);
  EXPECT_THAT(HostArena::Create(Layout(1000, 4), 0, false, pool),
              StatusIs(Code::kInvalidArgument, HasSubstr("slots: 0")));
  EXPECT_THAT(HostArena::Create(Layout(1000, 4), 65, false, pool),
              StatusIs(Code::kInvalidArgument, HasSubstr("slots: 65")));
}

TEST(HostArenaTest, SharedArenaCannotBeMappedForWriting) {
  MemoryBudget pool(16 * kSlotAlignment);
  const auto shared = HostArena::Create(Layout(10, 1), 3, true, pool);
  EXPECT_FALSE(Mapping::Map((*shared)->fd(), (*shared)->bytes(), Access::kReadWrite, false).ok());
  const auto own = HostArena::Create(Layout(10, 1), 3, false, pool);
  EXPECT_TRUE(Mapping::Map((*own)->fd(), (*own)->bytes(), Access::kReadWrite, false).ok());
}

TEST(HostArenaTest, NothingOfAnEarlierUserIsSeen) {
  MemoryBudget pool(64 * kSlotAlignment);
  for (int round = 0; round < 8;
       ++round) {  // each earlier arena was written to as a whole; the kernel clears its memory
    const auto arena = HostArena::Create(Layout(4096, 4), 3, round % 2 == 0, pool, round).value();
    const auto client = Mapping::Map(arena->fd(), arena->bytes(), Access::kReadOnly, false).value();
    for (uint32_t slot = 0; slot < 3; ++slot) ASSERT_OK(arena->Prepare({slot, 0, 4, 0}, 0, 4));
    for (uint64_t at = 0; at < arena->bytes(); ++at) ASSERT_EQ(client.data()[at], std::byte{0}) << at;
    std::memset(arena->FillAddress({}, 0), 'a' + round, arena->bytes());
  }
}

TEST(HostArenaTest, MemoryThatAClientKeepsStaysChargedUntilItIsGone) {
  MemoryBudget pool(16 * kSlotAlignment);
  HostMemoryQuarantine kept;
  for (const bool shared : {true, false}) {
    auto arena = HostArena::Create(Layout(1000, 4), 3, shared, pool, 7, &kept).value();
    auto client = Mapping::Map(arena->fd(), arena->bytes(), Access::kReadOnly, false).value();
    arena->Discard();  // it said that it has not
    arena.reset();
    kept.AwaitNone(std::chrono::steady_clock::now() + std::chrono::milliseconds(150));
    EXPECT_EQ(pool.used_by_user(), (std::map<uid_t, uint64_t>{{7, 3 * kSlotAlignment}})) << shared;
    EXPECT_EQ(kept.bytes(), 3 * kSlotAlignment);
    client = Mapping();
    kept.AwaitNone(std::chrono::steady_clock::now() + std::chrono::seconds(30));
    EXPECT_EQ(pool.used_bytes(), 0U);
    arena = HostArena::Create(Layout(1000, 4), 3, shared, pool, 7, &kept).value();
    arena.reset();
    EXPECT_EQ(pool.used_bytes(), 0U) << "at once, when nobody has it";
  }
}

}  // namespace
}  // namespace pinfeed
