// SPDX-License-Identifier: Apache-2.0
#include "server/memory/host_memory_ledger.h"

#include <optional>
#include <utility>

#include "server/memory/index_memory.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A host of which so much is available; what is taken is taken of it.
class HostMemoryLedgerTest : public ::testing::Test {
 protected:
  Status Take(HostMemoryLedger::Reservation& reservation, uint64_t bytes) {
    RETURN_IF_ERROR(reservation.BeginAllocation(bytes));
    available_ -= bytes;
    reservation.EndAllocation(bytes);
    return OkStatus();
  }

  uint64_t available_ = 100 * kMiB;
  HostMemoryLedger ledger_{[this](uint64_t /*enough*/) {
    return Result<HostMemory>(HostMemory{256 * kMiB, available_, "a group", "a tighter group"});
  }};
};

TEST_F(HostMemoryLedgerTest, WhatWasPromisedIsNotPromisedAgain) {
  std::optional<HostMemoryLedger::Reservation> first(ledger_.Reserve(50 * kMiB).value());
  EXPECT_THAT(
      ledger_.Reserve(50 * kMiB),
      StatusIs(Code::kResourceExhausted,
               AllOf(HasSubstr("a tighter group"), HasSubstr("100 MiB (104857600 bytes) are left"),
                     HasSubstr("need 100 MiB"), HasSubstr("16 MiB are reserved"), HasSubstr("pool_bytes"))));
  ASSERT_OK(Take(*first, 20 * kMiB));
  EXPECT_FALSE(ledger_.Reserve(50 * kMiB).ok()) << "80 are available, of which 30 are promised";
  EXPECT_TRUE(ledger_.Reserve(34 * kMiB).ok());
  first.reset();
  EXPECT_TRUE(ledger_.Reserve(64 * kMiB).ok()) << "what was refused, ended or not taken is promised no more";
}

TEST_F(HostMemoryLedgerTest, WhatOthersTookMeanwhileIsNotTakenTwice) {
  HostMemoryLedger::Reservation reservation = ledger_.Reserve(60 * kMiB).value();
  available_ = 30 * kMiB;
  EXPECT_THAT(Take(reservation, 40 * kMiB), StatusIs(Code::kResourceExhausted));
  EXPECT_OK(Take(reservation, 20 * kMiB));
}

TEST_F(HostMemoryLedgerTest, TwoWhoTakeAtOnceSeeEachOther) {
  HostMemoryLedger::Reservation one = ledger_.Reserve(40 * kMiB).value();
  HostMemoryLedger::Reservation other = ledger_.Reserve(40 * kMiB).value();
  available_ = 60 * kMiB;
  ASSERT_OK(one.BeginAllocation(40 * kMiB));
  EXPECT_THAT(other.BeginAllocation(40 * kMiB), StatusIs(Code::kResourceExhausted));
}

TEST_F(HostMemoryLedgerTest, WhatWasBegunEndsWithItsPromise) {
  {
    HostMemoryLedger::Reservation reservation = ledger_.Reserve(60 * kMiB).value();
    ASSERT_OK(reservation.BeginAllocation(50 * kMiB));
    const HostMemoryLedger::Reservation moved = std::move(reservation);
    EXPECT_FALSE(ledger_.Reserve(30 * kMiB).ok()) << "it is promised still";
  }
  HostMemoryLedger::Reservation other = ledger_.Reserve(84 * kMiB).value();
  EXPECT_OK(other.BeginAllocation(84 * kMiB));
}

TEST_F(HostMemoryLedgerTest, OnlyALargeSampleAsksForItsMemory) {
  HostMemoryLedger::Reservation unfilled = ledger_.Reserve(80 * kMiB).value();
  ASSERT_OK_AND_ASSIGN(const auto one, ledger_.ReserveForSample(65 * kMiB));
  EXPECT_TRUE(one.has_value()) << "slots that a feed has not filled do not count";
  EXPECT_EQ(ledger_.reserved_bytes(), 80 * kMiB) << "the sample gives it back soon";
  EXPECT_THAT(ledger_.ReserveForSample(65 * kMiB),
              StatusIs(Code::kResourceExhausted,
                       AllOf(HasSubstr("a sample that takes 65 MiB"), HasSubstr("a tighter group"),
                             HasSubstr("need 130 MiB"), HasSubstr("fewer workers"))));
  EXPECT_THAT(unfilled.BeginAllocation(40 * kMiB), StatusIs(Code::kResourceExhausted));
  available_ = 0;
  ASSERT_OK_AND_ASSIGN(const auto little, ledger_.ReserveForSample(16 * kMiB));
  EXPECT_FALSE(little.has_value());
}

TEST_F(HostMemoryLedgerTest, WhatIsRefusedIsNotSeenByOthers) {
  HostMemoryLedger watched([&](uint64_t enough) -> Result<HostMemory> {
    EXPECT_GT(enough, 200 * kMiB);
    EXPECT_EQ(watched.reserved_bytes(), 0U);
    return HostMemory{256 * kMiB, 100 * kMiB, "a group", "a tighter group"};
  });
  EXPECT_FALSE(watched.ReserveForSample(200 * kMiB).ok());
  EXPECT_FALSE(watched.Reserve(200 * kMiB).ok());
  EXPECT_EQ(watched.reserved_bytes(), 0U);
}

TEST_F(HostMemoryLedgerTest, AnIndexLeavesWhatFeedsMayTake) {
  HostMemoryLedger::Reservation unfilled = ledger_.Reserve(10 * kMiB).value();
  EXPECT_THAT(
      ledger_.ReserveForIndex(80 * kMiB),
      StatusIs(Code::kResourceExhausted, AllOf(HasSubstr("need 90 MiB"), HasSubstr("split the dataset"))));
  {
    ASSERT_OK_AND_ASSIGN(const auto index, ledger_.ReserveForIndex(70 * kMiB));
    EXPECT_EQ(ledger_.reserved_bytes(), 80 * kMiB);
  }
  EXPECT_EQ(ledger_.reserved_bytes(), 10 * kMiB);
}

TEST_F(HostMemoryLedgerTest, AnIndexIsAskedForAsItGrows) {
  {
    IndexMemory index(ledger_);
    ASSERT_OK(index.Add(kMiB));
    EXPECT_EQ(ledger_.reserved_bytes(), 0U) << "little is not asked for";
    ASSERT_OK(index.Add(1));
    EXPECT_EQ(ledger_.reserved_bytes(), 8 * kMiB);
    ASSERT_OK(index.Add(8 * kMiB - 1));
    EXPECT_EQ(ledger_.reserved_bytes(), 8 * kMiB);
    ASSERT_OK(index.Add(70 * kMiB));
    EXPECT_EQ(ledger_.reserved_bytes(), 70 * kMiB) << "what was asked for before has been taken";
    IndexMemory another(ledger_);
    EXPECT_THAT(another.Add(20 * kMiB), StatusIs(Code::kResourceExhausted, HasSubstr("need 90 MiB")));
  }
  EXPECT_EQ(ledger_.reserved_bytes(), 0U);
}

TEST_F(HostMemoryLedgerTest, AnIndexMayTakeWhatTheHostHasLeft) {
  IndexMemory index(ledger_);
  uint64_t taken = 0;
  for (; index.Add(kMiB).ok() && taken < 100 * kMiB; taken += kMiB) available_ -= kMiB;
  EXPECT_GT(taken, 76 * kMiB) << "all but the daemon's 16 MiB and one step of 8";
  EXPECT_LE(taken, 84 * kMiB + kMiB);
}

TEST_F(HostMemoryLedgerTest, SpareMemoryIsFreedForOthers) {
  std::optional<HostMemoryLedger::Reservation> spare = ledger_.ReserveSpare(30 * kMiB, 20 * kMiB).value();
  EXPECT_FALSE(ledger_.ReserveSpare(40 * kMiB, 20 * kMiB).has_value());
  uint64_t freed = 0;
  spare->Allocate(30 * kMiB);
  available_ -= 30 * kMiB;
  ledger_.SetFreeSpare([&](uint64_t bytes) {
    freed = bytes;
    available_ = 100 * kMiB;
    return true;
  });
  {
    ASSERT_OK_AND_ASSIGN(const auto sample, ledger_.ReserveForSample(84 * kMiB));
    EXPECT_EQ(freed, 22 * kMiB) << "of 84 and half of the daemon's 16, 70 are there";
    EXPECT_FALSE(ledger_.ReserveSpare(kMiB, 0).has_value()) << "the sample is about to take it";
  }
  for (const auto reserve : {&HostMemoryLedger::Reserve, &HostMemoryLedger::ReserveForIndex}) {
    available_ = 0;
    EXPECT_OK((ledger_.*reserve)(70 * kMiB));
  }
  available_ = 0;
  EXPECT_FALSE(ledger_.ReserveSpare(kMiB, 0).has_value()) << "it makes no room for itself";
  ledger_.SetFreeSpare(nullptr);
  ledger_.SetFreeSpare([&](uint64_t) { return false; });
  EXPECT_FALSE(ledger_.Reserve(70 * kMiB).ok());
}

TEST(ResizeForSampleTest, OnlyWhatThereIsBecomesABuffer) {
  std::vector<std::byte> buffer;
  ASSERT_OK(ResizeForSample(65 << 20, buffer));
  EXPECT_EQ(buffer.size(), size_t{65} << 20);
  const std::byte* const memory = buffer.data();
  ASSERT_OK(ResizeForSample(7, buffer));
  EXPECT_EQ(buffer.size(), 7U);
  ASSERT_OK(ResizeForSample(1 << 20, buffer));
  EXPECT_EQ(buffer.data(), memory);
  EXPECT_THAT(ResizeForSample(uint64_t{1} << 50, buffer),
              StatusIs(Code::kResourceExhausted, HasSubstr("a sample that takes 1 PiB")));
}

TEST_F(HostMemoryLedgerTest, WhatCannotBeToldIsTheKernelsToRefuse) {
  HostMemoryLedger blind(
      [](uint64_t) -> Result<HostMemory> { return ResourceExhausted("no descriptor is left"); });
  ASSERT_OK_AND_ASSIGN(HostMemoryLedger::Reservation reservation, blind.Reserve(kMiB));
  EXPECT_OK(reservation.BeginAllocation(kMiB));
  reservation.EndAllocation(kMiB);
}

}  // namespace
}  // namespace pinfeed
