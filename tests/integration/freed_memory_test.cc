// SPDX-License-Identifier: Apache-2.0
#include "common/os/freed_memory.h"

#include <malloc.h>

#include <cstddef>
#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(FreedMemoryTest, LargeObjectsGoBackAtOnce) {
  if (::mallinfo2().arena == 0) GTEST_SKIP() << "a sanitizer replaces the allocator";
  constexpr size_t kBytes = size_t{8} << 20;
  ReturnLargeObjects();
  const size_t before = ::mallinfo2().hblkhd;
  for (int i = 0; i < 2; ++i) {  // by itself, glibc has the second one on its heap
    const std::vector<std::byte> object(kBytes, std::byte{1});
    EXPECT_GE(::mallinfo2().hblkhd, before + kBytes);
  }
  EXPECT_EQ(::mallinfo2().hblkhd, before);
}

}  // namespace
}  // namespace pinfeed
