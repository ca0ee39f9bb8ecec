// SPDX-License-Identifier: Apache-2.0
#include "server/net/descriptor_room.h"

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DescriptorRoomTest, KeepsSomeForConnections) {
  EXPECT_OK(CheckDescriptorRoom(256, 128, [] { return 104U; }));
  EXPECT_THAT(
      CheckDescriptorRoom(256, 128, [] { return 105U; }),
      StatusIs(Code::kResourceExhausted,
               AllOf(HasSubstr("105 of the 128"), HasSubstr("16 are reserved"), HasSubstr("LimitNOFILE"))));
  EXPECT_OK(CheckDescriptorRoom(256, 64, [] { return 48U; }));
  EXPECT_FALSE(CheckDescriptorRoom(256, 64, [] { return 49U; }).ok());
  EXPECT_FALSE(CheckDescriptorRoom(256, 8, [] { return 1U; }).ok());
  EXPECT_FALSE(CheckDescriptorRoom(65536, 524288, [] { return 524288U - 71; }).ok());
}

TEST(DescriptorRoomTest, CountsOnlyWhereItMatters) {
  int counted = 0;
  const auto count = [&] {
    ++counted;
    return 10U;
  };
  EXPECT_OK(CheckDescriptorRoom(256, 1048576, count));
  EXPECT_OK(CheckDescriptorRoom(256, UINT32_MAX, count));
  EXPECT_EQ(counted, 0);
  EXPECT_OK(CheckDescriptorRoom(256, 1024, count));
  EXPECT_EQ(counted, 1);
}

}  // namespace
}  // namespace pinfeed
