// SPDX-License-Identifier: Apache-2.0
#include "common/os/foreign_fds.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>

#include "common/os/socket_message.h"
#include "tests/support/lingering_socket.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

class ForeignFdsTest : public ::testing::Test {
 protected:
  ~ForeignFdsTest() override {
    EXPECT_LT(std::chrono::steady_clock::now() - begin_, std::chrono::seconds(kLingerSeconds) / 2);
  }
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

TEST_F(ForeignFdsTest, ClosingApartDoesNotWait) {
  std::array<LingeringSocket, 3> sockets;
  for (LingeringSocket& socket : sockets) CloseApart(socket.Take());
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd here(ends[0]);
  CloseApart(UniqueFd(ends[1]));
  char byte = 0;
  EXPECT_EQ(::recv(here.get(), &byte, 1, 0), 0) << "behind those that hang";
}

TEST_F(ForeignFdsTest, AConnectionEndsAlthoughWhatItWasSentCannotBeClosed) {
  LingeringSocket socket;
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd there(ends[0]);
  UniqueConnection here(ends[1]);
  {
    const UniqueFd gift = socket.Take();
    const std::array<int, 1> fds{gift.get()};
    ASSERT_EQ(SendSocketMessage(there.get(), {}, fds), 0);
  }
  here.reset();
  char byte = 0;
  EXPECT_EQ(::recv(there.get(), &byte, 1, 0), 0);
}

TEST_F(ForeignFdsTest, AKernelThatCanRefusesThemAtOnce) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd here(ends[0]);
  const UniqueFd there(ends[1]);
  RefuseForeignFds(here.get());
  int accepted = 0;
  socklen_t length = sizeof accepted;
  const bool can = ::getsockopt(here.get(), SOL_SOCKET, 83 /* SO_PASSRIGHTS */, &accepted, &length) == 0;
  const std::array<int, 1> fds{0};
  const std::array<std::byte, 1> byte{};
  EXPECT_EQ(SendSocketMessage(there.get(), byte, fds), can ? EPERM : 0);
  EXPECT_EQ(SendSocketMessage(here.get(), byte, fds), 0) << "the other way";
}

}  // namespace
}  // namespace pinfeed
