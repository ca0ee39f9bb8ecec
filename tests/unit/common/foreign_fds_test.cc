// SPDX-License-Identifier: Apache-2.0
#include "common/os/foreign_fds.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <vector>

#include "common/os/socket_message.h"
#include "common/os/tcp_address.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr int kLingerSeconds = 300;

// A TCP socket whose close() waits until its peer has read, or ends.
class LingeringSocket {
 public:
  LingeringSocket() : listener_(std::move(ListenTcp("127.0.0.1:0", 1)).value()) {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    PF_CHECK(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0,
             "getsockname");
    fd_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    PF_CHECK(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0, "connect");
    peer_.reset(::accept(listener_.get(), nullptr, nullptr));
    const linger waits{1, kLingerSeconds};
    PF_CHECK(::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &waits, sizeof waits) == 0, "SO_LINGER");
    const std::vector<char> unread(1 << 20);
    while (::send(fd_.get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) {
    }
    PF_CHECK(errno == EAGAIN, "the peer does not read");
  }
  UniqueFd Take() { return std::move(fd_); }

 private:
  const UniqueFd listener_;
  UniqueFd fd_;
  UniqueFd peer_;
};

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
  const std::array<int, 1> fds{0};
  const std::array<std::byte, 1> byte{};
  const int error = SendSocketMessage(there.get(), byte, fds);
  EXPECT_TRUE(error == EPERM || error == 0) << error;
  EXPECT_EQ(SendSocketMessage(here.get(), byte, fds), 0) << "the other way";
}

}  // namespace
}  // namespace pinfeed
