// SPDX-License-Identifier: Apache-2.0
#include "common/os/socket_message.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

class SocketMessageTest : public ::testing::Test {
 protected:
  SocketMessageTest() {
    std::array<int, 2> ends{};
    PF_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, "socketpair");
    here_.reset(ends[0]);
    there_.reset(ends[1]);
  }
  // `text`, with `count` descriptors of /dev/null.
  void Send(const std::string& text, size_t count) const {
    const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const std::vector<int> fds(count, null.get());
    ASSERT_EQ(SendSocketMessage(there_.get(), std::as_bytes(std::span(text)), fds), 0);
  }
  SocketMessage Receive() {
    return ReceiveSocketMessage(here_.get(), std::as_writable_bytes(std::span(text_)));
  }

  UniqueFd here_;
  UniqueFd there_;
  std::array<char, 8> text_{};
};

TEST_F(SocketMessageTest, GivesTheBytesAndTheDescriptors) {
  Send("hello", 2);
  const SocketMessage message = Receive();
  EXPECT_EQ(message.error, 0);
  EXPECT_EQ(std::string(text_.data(), message.bytes), "hello");
  EXPECT_FALSE(message.truncated || message.fds_lost);
  ASSERT_EQ(message.fds.size(), 2U);
  for (const UniqueFd& fd : message.fds) EXPECT_EQ(::fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(SocketMessageTest, ClosesAllThatTheKernelCanPass) {
  int first = -1;
  int last = -1;
  {
    Send("x", 253);
    const SocketMessage message = Receive();
    EXPECT_FALSE(message.fds_lost);
    ASSERT_EQ(message.fds.size(), 253U);
    first = message.fds.front().get();
    last = message.fds.back().get();
  }
  for (const int fd : {first, last}) {
    EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
    EXPECT_EQ(errno, EBADF);
  }
}

TEST_F(SocketMessageTest, SaysWhatWasCutWhatIsNotThereAndWhoIsGone) {
  EXPECT_EQ(Receive().error, EAGAIN);
  Send("far too long", 0);
  const SocketMessage cut = Receive();
  EXPECT_TRUE(cut.truncated);
  EXPECT_EQ(cut.bytes, text_.size());
  there_.reset();
  const SocketMessage end = Receive();
  EXPECT_EQ(end.error, 0);
  EXPECT_EQ(end.bytes, 0U);
  EXPECT_TRUE(end.fds.empty());
}

}  // namespace
}  // namespace pinfeed
