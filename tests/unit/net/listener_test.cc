// SPDX-License-Identifier: Apache-2.0
#include "server/net/listener.h"

#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "common/os/unix_address.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

class ListenerTest : public ::testing::Test {
 protected:
  UniqueFd Connect() const {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(AtSocketPath(::connect, fd.get(), path_), 0);
    return fd;
  }
  uint64_t refused() const { return refusals_.counts()[static_cast<size_t>(Refusal::kUid)]; }

  bool served_ = true;
  const TempDir directory_;
  const std::string path_ = (directory_ / "socket").string();
  Refusals refusals_;
  Listener listener_ =
      Listener::Create(path_, SOCK_STREAM, {0600, std::nullopt, [this](uid_t) { return served_; }}, refusals_)
          .value();
  size_t taken_ = 0;
  const std::function<void(Listener::Connection)> take_ = [this](const Listener::Connection&) { ++taken_; };
};

TEST_F(ListenerTest, AFloodOfConnectionsLeavesTimeForOtherWorkWhetherTheyAreServedOrNot) {
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(Connect());
  ASSERT_OK(listener_.Accept(2, take_));
  EXPECT_EQ(taken_, 2U);
  served_ = false;
  ASSERT_OK(listener_.Accept(2, take_));
  EXPECT_EQ(refused(), 2U);
  ASSERT_OK(listener_.Accept(2, take_));
  EXPECT_EQ(refused(), 3U);
  EXPECT_EQ(taken_, 2U);
}

}  // namespace
}  // namespace pinfeed
