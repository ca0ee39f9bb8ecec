// SPDX-License-Identifier: Apache-2.0
#include "server/net/socket_stream.h"

#include <sys/socket.h>

#include <array>
#include <chrono>

#include "common/os/socket_message.h"
#include "tests/support/lingering_socket.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

// Over a pair, which passes descriptors also where the kernel can refuse them.
TEST(SocketStreamTest, ADescriptorBreaksItAndIsNotWaitedFor) {
  const auto begin = std::chrono::steady_clock::now();
  LingeringSocket socket;
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd there(ends[0]);
  SocketStream stream{UniqueConnection(ends[1])};
  {
    const UniqueFd gift = socket.Take();
    const std::array<int, 1> fds{gift.get()};
    const std::array<std::byte, 1> byte{};
    ASSERT_EQ(SendSocketMessage(there.get(), byte, fds), 0);
  }
  std::array<char, 16> read{};
  EXPECT_EQ(stream.Read(read.data(), read.size()), ByteStream::kBroken);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(kLingerSeconds) / 2);
}

}  // namespace
}  // namespace pinfeed
