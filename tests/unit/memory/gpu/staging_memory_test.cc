// SPDX-License-Identifier: Apache-2.0
// How many pieces of a batch may be in use at once.
#include "server/memory/gpu/staging_memory.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/cuda/device.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr int64_t kSampleBytes = int64_t{8} << 20;  // one is a piece
constexpr uint64_t kPieces = 16;

class StagingMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(const auto device, CudaDevice::Open(0));
    PinnedRegion::Options options;
    options.bytes = 2 * kPieces * kSampleBytes;
    ASSERT_OK_AND_ASSIGN(BudgetLease lease, pool_.Reserve(options.bytes, 0));
    ASSERT_OK_AND_ASSIGN(region_, PinnedRegion::Create(device, options, std::move(lease)));
  }
  std::unique_ptr<StagingMemory> Make(CacheShare& cache) {
    const BatchLayout layout = BatchLayout::Create({{"x", DType::kUint8, {kSampleBytes}}}, 4).value();
    return StagingMemory::Create(*region_, cache, layout, 4, 0).value();
  }
  static std::vector<Piece> TakeAll(StagingMemory& memory) {
    std::vector<Piece> pieces;
    for (Piece piece; memory.Take(&piece);) pieces.push_back(piece);
    return pieces;
  }

  MemoryBudget pool_{uint64_t{1} << 30};
  std::unique_ptr<PinnedRegion> region_;
};

TEST_F(StagingMemoryTest, FewPiecesEvenWithoutACache) {
  CacheShare cache(1);
  EXPECT_EQ(TakeAll(*Make(cache)).size(), 6U);
}

TEST(CacheShareTest, AMachineHasTheCacheThatItsCpusMayShare) {
  constexpr uint64_t kOne = uint64_t{1} << 20;
  EXPECT_EQ(CacheShare::BytesOf(300 * kOne, 64), 200 * kOne);
  EXPECT_EQ(CacheShare::BytesOf(300 * kOne, 32), 128 * kOne) << "the rest is for machines beside this one";
  EXPECT_EQ(CacheShare::BytesOf(30 * kOne, 32), 20 * kOne);
  EXPECT_EQ(CacheShare::BytesOf(0, 4), 32 * kOne) << "unknown";
  EXPECT_GT(CacheShare::CacheBytes(), 0U);
}

TEST_F(StagingMemoryTest, NoMoreThanALinkCanUse) {
  CacheShare cache(uint64_t{1} << 30);
  EXPECT_EQ(TakeAll(*Make(cache)).size(), kPieces);
}

TEST_F(StagingMemoryTest, ArenasInUseDivideTheCache) {
  CacheShare cache(16 * static_cast<uint64_t>(kSampleBytes));
  const auto first = Make(cache);
  const auto second = Make(cache);
  const std::vector<Piece> alone = TakeAll(*first);
  EXPECT_EQ(alone.size(), 16U);
  const std::vector<Piece> half = TakeAll(*second);
  EXPECT_EQ(half.size(), 8U);
  for (const Piece& piece : alone) first->Return(piece);
  EXPECT_EQ(TakeAll(*second).size(), 8U) << "the other one uses none any more";
}

}  // namespace
}  // namespace pinfeed
