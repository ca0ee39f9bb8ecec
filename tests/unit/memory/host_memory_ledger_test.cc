// SPDX-License-Identifier: Apache-2.0
#include "server/memory/host_memory_ledger.h"

#include <optional>
#include <utility>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A host of which so much is available; what is taken is taken of it.
class HostMemoryLedgerTest : public ::testing::Test {
 protected:
  Status Take(HostMemoryLedger::Reservation& promise, uint64_t bytes) {
    RETURN_IF_ERROR(promise.Begin(bytes));
    available_ -= bytes;
    promise.End(bytes);
    return OkStatus();
  }

  uint64_t available_ = 100 * kMiB;
  HostMemoryLedger room_{[this](uint64_t /*enough*/) {
    return Result<HostMemory>(HostMemory{256 * kMiB, available_, "a group", "a tighter group"});
  }};
};

TEST_F(HostMemoryLedgerTest, WhatWasPromisedIsNotPromisedAgain) {
  std::optional<HostMemoryLedger::Reservation> first(room_.Ask(50 * kMiB).value());
  EXPECT_THAT(
      room_.Ask(50 * kMiB),
      StatusIs(Code::kResourceExhausted,
               AllOf(HasSubstr("a tighter group"), HasSubstr("100 MiB (104857600 bytes) are left"),
                     HasSubstr("take 100 MiB"), HasSubstr("16 MiB are kept"), HasSubstr("pool_bytes"))));
  ASSERT_OK(Take(*first, 20 * kMiB));
  EXPECT_FALSE(room_.Ask(50 * kMiB).ok()) << "80 are available, of which 30 are promised";
  EXPECT_TRUE(room_.Ask(34 * kMiB).ok());
  first.reset();
  EXPECT_TRUE(room_.Ask(64 * kMiB).ok()) << "what was refused, ended or not taken is promised no more";
}

TEST_F(HostMemoryLedgerTest, WhatOthersTookMeanwhileIsNotTakenTwice) {
  HostMemoryLedger::Reservation promise = room_.Ask(60 * kMiB).value();
  available_ = 30 * kMiB;
  EXPECT_THAT(Take(promise, 40 * kMiB), StatusIs(Code::kResourceExhausted));
  EXPECT_OK(Take(promise, 20 * kMiB));
}

TEST_F(HostMemoryLedgerTest, TwoWhoTakeAtOnceSeeEachOther) {
  HostMemoryLedger::Reservation one = room_.Ask(40 * kMiB).value();
  HostMemoryLedger::Reservation other = room_.Ask(40 * kMiB).value();
  available_ = 60 * kMiB;
  ASSERT_OK(one.Begin(40 * kMiB));
  EXPECT_THAT(other.Begin(40 * kMiB), StatusIs(Code::kResourceExhausted));
}

TEST_F(HostMemoryLedgerTest, WhatWasBegunEndsWithItsPromise) {
  {
    HostMemoryLedger::Reservation promise = room_.Ask(60 * kMiB).value();
    ASSERT_OK(promise.Begin(50 * kMiB));
    const HostMemoryLedger::Reservation moved = std::move(promise);
    EXPECT_FALSE(room_.Ask(30 * kMiB).ok()) << "it is promised still";
  }
  HostMemoryLedger::Reservation other = room_.Ask(84 * kMiB).value();
  EXPECT_OK(other.Begin(84 * kMiB));
}

TEST_F(HostMemoryLedgerTest, WhatCannotBeToldIsTheKernelsToRefuse) {
  HostMemoryLedger blind(
      [](uint64_t) -> Result<HostMemory> { return ResourceExhausted("no descriptor is left"); });
  ASSERT_OK_AND_ASSIGN(HostMemoryLedger::Reservation promise, blind.Ask(kMiB));
  EXPECT_OK(promise.Begin(kMiB));
  promise.End(kMiB);
}

}  // namespace
}  // namespace pinfeed
