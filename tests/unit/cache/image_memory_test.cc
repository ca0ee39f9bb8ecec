// SPDX-License-Identifier: Apache-2.0
#include "server/cache/image_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <random>
#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class ImageMemoryTest : public ::testing::Test {
 protected:
  uint64_t available_ = 1024 * kMiB;
  uint64_t headroom_ = 0;
  HostMemoryLedger ledger_{[this](uint64_t /*enough*/) {
    return Result<HostMemory>(HostMemory{2048 * kMiB, available_, "a group", "a tighter group"});
  }};
  ImageMemory memory_{ledger_, [this] { return headroom_; }};
};

// Pages of a block that are allocated.
uint64_t ResidentBytes(const std::byte* data, uint64_t bytes) {
  std::vector<unsigned char> pages(bytes / 4096);
  if (::mincore(const_cast<std::byte*>(data), bytes, pages.data()) != 0) return 0;  // not mapped any more
  uint64_t resident = 0;
  for (const unsigned char page : pages) resident += (page & 1U) * 4096;
  return resident;
}

TEST_F(ImageMemoryTest, BlocksOfAllSizesDoNotOverlap) {
  std::minstd_rand random(1);
  std::vector<std::pair<ImageMemory::Block, int>> blocks;
  const auto check = [](const std::pair<ImageMemory::Block, int>& block) {
    for (uint64_t i = 0; i < block.first.bytes(); i += 512)
      ASSERT_EQ(std::to_integer<int>(block.first.data()[i]), block.second);
    ASSERT_EQ(std::to_integer<int>(block.first.data()[block.first.bytes() - 1]), block.second);
  };
  for (int i = 0; i < 600; ++i) {
    if (blocks.size() > 100 || (!blocks.empty() && random() % 3 == 0)) {
      const size_t which = random() % blocks.size();
      ASSERT_NO_FATAL_FAILURE(check(blocks[which]));
      std::vector<std::pair<ImageMemory::Block, int>> rest;
      for (size_t k = 0; k < blocks.size(); ++k)
        if (k != which) rest.push_back(std::move(blocks[k]));
      blocks.swap(rest);
      continue;
    }
    const uint64_t bytes = 1 + random() % (uint64_t{1} << (8 + random() % 15));
    auto block = memory_.Allocate(bytes);
    ASSERT_TRUE(block.has_value());
    ASSERT_EQ(block->bytes(), ImageMemory::BlockBytes(bytes));
    ASSERT_GE(block->bytes(), bytes);
    std::memset(block->data(), i % 251, block->bytes());
    blocks.emplace_back(*std::move(block), i % 251);
  }
  for (const auto& block : blocks) ASSERT_NO_FATAL_FAILURE(check(block));
}

TEST_F(ImageMemoryTest, EverySizeHasAClassUpToTheLargest) {
  for (uint64_t pages = 1; pages <= 8192; pages += 1 + pages / 16) {
    const auto block = memory_.Allocate(pages * 4096);
    ASSERT_TRUE(block.has_value());
    ASSERT_EQ(block->bytes(), pages * 4096);
  }
}

// The memory of one of many blocks in a chunk goes back, not only that of whole chunks.
TEST_F(ImageMemoryTest, MemoryOfAFreedBlockGoesBackToTheKernel) {
  auto kept = memory_.Allocate(kMiB);
  ASSERT_TRUE(kept.has_value());
  const std::byte* address = nullptr;
  {
    const auto freed = memory_.Allocate(kMiB);
    ASSERT_TRUE(freed.has_value());
    std::memset(freed->data(), 1, freed->bytes());
    address = freed->data();
    EXPECT_EQ(ResidentBytes(address, kMiB), kMiB);
  }
  EXPECT_EQ(ResidentBytes(address, kMiB), 0U);
  std::memset(kept->data(), 1, kept->bytes());
  EXPECT_EQ(ResidentBytes(kept->data(), kMiB), kMiB);
}

TEST_F(ImageMemoryTest, NothingIsAllocatedThatTheHostLacksOrOthersNeed) {
  available_ = 40 * kMiB;
  EXPECT_TRUE(memory_.Allocate(kMiB).has_value());
  headroom_ = 30 * kMiB;
  EXPECT_TRUE(memory_.Allocate(3 * kMiB).has_value()) << "it was promised before";
  EXPECT_FALSE(memory_.Allocate(10 * kMiB).has_value());
  headroom_ = 0;
  EXPECT_TRUE(memory_.Allocate(10 * kMiB).has_value());
  available_ = 20 * kMiB;
  EXPECT_FALSE(memory_.Allocate(10 * kMiB).has_value());
}

}  // namespace
}  // namespace pinfeed
