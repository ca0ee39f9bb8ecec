// SPDX-License-Identifier: Apache-2.0
#include "common/base/byte_size.h"

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(ByteSizeTest, ChoosesTheUnitAndOneDigit) {
  const std::pair<uint64_t, const char*> sizes[] = {
      {0, "0 B"},
      {1, "1 B"},
      {1023, "1023 B"},
      {1024, "1 KiB"},
      {1536, "1.5 KiB"},
      {1600, "1.6 KiB"},
      {1048575, "1 MiB"},
      {1 << 20, "1 MiB"},
      {3 << 29, "1.5 GiB"},
      {1ULL << 40, "1 TiB"},
      {UINT64_MAX, "16 EiB"},
  };
  for (const auto& [bytes, text] : sizes) EXPECT_EQ(ByteSize(bytes), text) << bytes;
}

TEST(ByteSizeTest, ExactTellsSizesApartThatRoundToTheSame) {
  EXPECT_EQ(ExactByteSize(512), "512 bytes");
  EXPECT_EQ(ExactByteSize(3ULL << 29), "1.5 GiB (1610612736 bytes)");
  EXPECT_EQ(ExactByteSize((3ULL << 29) + 1), "1.5 GiB (1610612737 bytes)");
}

}  // namespace
}  // namespace pinfeed
