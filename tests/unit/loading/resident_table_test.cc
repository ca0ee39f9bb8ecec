// SPDX-License-Identifier: Apache-2.0
// How resident samples are shared and freed.
#include "server/loading/resident_table.h"

#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "tests/unit/loading/resident_fixture.h"

namespace pinfeed {
namespace {

constexpr std::chrono::hours kLong(1);

class ResidentTableTest : public ResidentTest {
 protected:
  static ResidentTable::Key KeyOf(const std::shared_ptr<const Dataset>& dataset) {
    return {0, kGpu, dataset, FeedSpec()};
  }
};

TEST_F(ResidentTableTest, FeedsOfOneKeyShareAndOthersDoNot) {
  ResidentTable table(kLong);
  table.Start();
  const auto numbers = Numbers();
  int made = 0;
  const auto make = [&] {
    ++made;
    return Result<std::shared_ptr<ResidentData>>(MakeData(numbers));
  };
  ResidentTable::Key key = KeyOf(numbers);
  ASSERT_OK_AND_ASSIGN(auto one, table.Acquire(key, make));
  ASSERT_OK_AND_ASSIGN(auto other, table.Acquire(key, make));
  EXPECT_EQ(one, other);
  EXPECT_EQ(made, 1);
  for (const auto change : {0, 1, 2, 3}) {
    ResidentTable::Key changed = key;
    if (change == 0) changed.owner = 7;
    if (change == 1) changed.gpu_uuid = "GPU-2";
    if (change == 2) changed.dataset = Numbers();  // opened again
    if (change == 3) changed.load.valid = true;
    ASSERT_OK_AND_ASSIGN(const auto apart, table.Acquire(changed, make));
    EXPECT_NE(apart, one);
  }
  EXPECT_EQ(made, 5);
  // Kept for the next feed.
  const ResidentData* const kept = one.get();
  one.reset();
  other.reset();
  ASSERT_OK_AND_ASSIGN(one, table.Acquire(key, make));
  EXPECT_EQ(one.get(), kept);
  one.reset();
  table.Stop();
  EXPECT_EQ(pool_.used_bytes(), 0U);
}

TEST_F(ResidentTableTest, ThoseWithoutAUserGiveWay) {
  ResidentTable table(kLong);
  table.Start();
  const auto numbers = Numbers();
  const auto make = [&] { return Result<std::shared_ptr<ResidentData>>(MakeData(numbers)); };
  ASSERT_OK_AND_ASSIGN(auto used, table.Acquire(KeyOf(numbers), make));
  const uint64_t bytes = pool_.used_bytes();
  ResidentTable::Key other = KeyOf(numbers);
  other.owner = 1;
  ASSERT_OK(table.Acquire(other, make));
  EXPECT_EQ(pool_.used_bytes(), 2 * bytes);
  table.FreeIdle(kGpu, std::nullopt, std::chrono::steady_clock::now() + kLong);
  EXPECT_EQ(pool_.used_bytes(), bytes) << "the one in use stays";
  used.reset();
  table.FreeIdle(kGpu, std::nullopt, std::chrono::steady_clock::now() + kLong);
  EXPECT_EQ(pool_.used_bytes(), 0U);
}

TEST_F(ResidentTableTest, ThoseOfOtherGpusAndOwnersDoNotGiveWay) {
  ResidentTable table(kLong);
  table.Start();
  const auto numbers = Numbers();
  const auto add = [&](const char* gpu, uid_t owner) {
    ResidentTable::Key key = KeyOf(numbers);
    key.gpu_uuid = gpu;
    key.owner = owner;
    EXPECT_OK(table.Acquire(
        key, [&] { return Result<std::shared_ptr<ResidentData>>(MakeData(numbers, nullptr, gpu, owner)); }));
  };
  for (const uid_t owner : {1, 2}) {
    add(kGpu, owner);
    add("GPU-2", owner);
  }
  const uint64_t bytes = pool_.used_bytes() / 4;
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  table.FreeIdle("GPU-3", std::nullopt, deadline);
  table.FreeIdle(kGpu, 3, deadline);
  EXPECT_EQ(pool_.used_bytes(), 4 * bytes);
  table.FreeIdle(kGpu, 1, deadline);
  EXPECT_EQ(pool_.used_bytes(), 3 * bytes);
  table.FreeIdle("GPU-2", std::nullopt, deadline);
  EXPECT_EQ(pool_.used_bytes(), bytes);
}

TEST_F(ResidentTableTest, ThoseWithoutAUserGoAfterAWhile) {
  ResidentTable table(std::chrono::milliseconds(1));
  table.Start();
  const auto numbers = Numbers();
  ASSERT_OK(table.Acquire(KeyOf(numbers),
                          [&] { return Result<std::shared_ptr<ResidentData>>(MakeData(numbers)); }));
  while (pool_.used_bytes() != 0) std::this_thread::yield();
}

TEST_F(ResidentTableTest, LoadingEndsWhenNobodyWantsTheSamples) {
  HeldLoader* loader = nullptr;
  ResidentTable table(kLong);
  table.Start();
  const auto numbers = Numbers();
  const auto make = [&] { return Result<std::shared_ptr<ResidentData>>(MakeData(numbers, &loader)); };
  ASSERT_OK_AND_ASSIGN(auto data, table.Acquire(KeyOf(numbers), make));
  const std::shared_ptr<PieceRequest> request = loader->held.front();
  loader->held.clear();
  data.reset();
  table.FreeIdle(kGpu, std::nullopt, std::chrono::steady_clock::now());  // asks, and does not wait
  std::thread asks([&] { table.FreeIdle(kGpu, std::nullopt, std::chrono::steady_clock::now() + kLong); });
  while (request->Wanted(0)) std::this_thread::yield();
  EXPECT_NE(pool_.used_bytes(), 0U) << "the loader may still write";
  request->Complete(OkStatus());
  // The request, too, is an owner.
  const_cast<std::shared_ptr<PieceRequest>&>(request).reset();
  asks.join();
  EXPECT_EQ(pool_.used_bytes(), 0U);
}

TEST_F(ResidentTableTest, OneThatCouldNotBeMadeKeepsNobodyWaiting) {
  ResidentTable table(kLong);
  table.Start();
  const auto numbers = Numbers();
  using Made = Result<std::shared_ptr<ResidentData>>;
  EXPECT_THAT(table.Acquire(KeyOf(numbers), []() -> Made { return ResourceExhausted("it does not fit"); }),
              StatusIs(Code::kResourceExhausted));
  EXPECT_OK(table.Acquire(KeyOf(numbers), [&]() -> Made { return MakeData(numbers); }));
  table.Stop();
}

TEST_F(ResidentTableTest, FailedOnesAreMadeAnew) {
  HeldLoader* loader = nullptr;
  ResidentTable table(kLong);
  table.Start();
  const auto numbers = Numbers();
  const auto make = [&] { return Result<std::shared_ptr<ResidentData>>(MakeData(numbers, &loader)); };
  EXPECT_EQ(table
                .Acquire(KeyOf(numbers),
                         [] { return Result<std::shared_ptr<ResidentData>>(ResourceExhausted("no room")); })
                .status()
                .code(),
            Code::kResourceExhausted);
  ASSERT_OK_AND_ASSIGN(auto failed, table.Acquire(KeyOf(numbers), make));
  loader->held.front()->Complete(ResourceExhausted("no memory for it"));
  loader->held.clear();
  ASSERT_OK_AND_ASSIGN(auto again, table.Acquire(KeyOf(numbers), make));
  EXPECT_NE(failed, again);
  loader->held.front()->Complete(OkStatus());
  loader->held.clear();
  EXPECT_TRUE(again->loaded());
  failed.reset();
  again.reset();
}

}  // namespace
}  // namespace pinfeed
