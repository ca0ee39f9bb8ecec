// SPDX-License-Identifier: Apache-2.0
#include "server/session/lifeline_frame.h"

#include <sys/socket.h>

#include <array>

#include "common/os/socket_message.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

class LifelineFrameTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> pair{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
    daemon_.reset(pair[0]);
    client_.reset(pair[1]);
  }
  UniqueFd daemon_;
  UniqueFd client_;
};

TEST_F(LifelineFrameTest, ReaderHasItsStartAndOneDescriptor) {
  ASSERT_OK(SendReader(daemon_.get(), {7, 9, {}}, client_.get()));
  LifelineFrame frame{};
  const SocketMessage message =
      ReceiveSocketMessage(client_.get(), std::as_writable_bytes(std::span(&frame, 1)));
  EXPECT_EQ(message.bytes, sizeof frame);
  EXPECT_EQ(message.fds.size(), 1U);
  EXPECT_EQ(frame.kind, static_cast<uint32_t>(LifelineKind::kReader));
  EXPECT_EQ(frame.reader.epoch, 7U);
  EXPECT_EQ(frame.reader.batch_index, 9U);
}

TEST_F(LifelineFrameTest, FewReadersWaitForAClientThatReadsNone) {
  int sent = 0;
  while (sent < 100 && SendReader(daemon_.get(), {}, client_.get()).ok()) ++sent;
  EXPECT_GE(sent, 7);  // as many as a GPU may well have
  EXPECT_LT(sent, 40);
  LifelineFrame frame{};
  for (int i = 0; i < sent; ++i)
    EXPECT_EQ(ReceiveSocketMessage(client_.get(), std::as_writable_bytes(std::span(&frame, 1))).error, 0);
  EXPECT_OK(SendReader(daemon_.get(), {}, client_.get()));
}

}  // namespace
}  // namespace pinfeed
