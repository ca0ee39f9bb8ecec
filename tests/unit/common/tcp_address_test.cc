// SPDX-License-Identifier: Apache-2.0
#include "common/os/tcp_address.h"

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(TcpAddressTest, IsHostAndPortAndNoPath) {
  for (const char* address :
       {"node7:9468", "node7.example:0", "10.0.0.7:65535", "[::1]:9468", "[fe80::1%eth0]:1"})
    EXPECT_TRUE(IsTcpAddress(address)) << address;
  for (const char* other : {"", ":", ":1", "node7", "node7:", "node7:-1", "node7:65536", "node7:1x",
                            "/run/a:1", "./a:1", "::1:9468", "[::1]", "[]:1", "a[b]:1"})
    EXPECT_FALSE(IsTcpAddress(other)) << other;
  EXPECT_FALSE(IsTcpAddress(std::string_view("10.0.0.7\0x:1", 12)));  // C would see another one
}

TEST(TcpAddressTest, AnAddressToListenOnIsNumeric) {
  for (const char* address : {"10.0.0.7:65535", "0.0.0.0:0", "[::]:9468", "[::ffff:127.0.0.1]:1"})
    EXPECT_TRUE(IsNumericTcpAddress(address)) << address;
  for (const char* other : {"999.1.1.1:1", "1.2.3.4.5:1", "node7:9468", "abc:1", "[::g]:1", "[1:2]:3",
                            "::1:1", "10.0.0.7", ".:1"})
    EXPECT_FALSE(IsNumericTcpAddress(other)) << other;
}

TEST(TcpAddressTest, HostHasNoBrackets) {
  EXPECT_EQ(HostOf("[::1]:9468"), "::1");
  EXPECT_EQ(HostOf("10.0.0.7:1"), "10.0.0.7");
}

TEST(TcpAddressTest, ListensOnAFreePortOnce) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd first, ListenTcp("127.0.0.1:0", 1));
  ASSERT_OK_AND_ASSIGN(const uint16_t port, BoundPort(first));
  EXPECT_NE(port, 0);
  EXPECT_THAT(ListenTcp("127.0.0.1:" + std::to_string(port), 1).status().message(),
              HasSubstr("Address already in use"));
  EXPECT_FALSE(ListenTcp("node7.example:1", 1).ok());  // a name
}

}  // namespace
}  // namespace pinfeed
