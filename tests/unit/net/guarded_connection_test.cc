// SPDX-License-Identifier: Apache-2.0
#include "server/net/guarded_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>

#include "server/net/socket_stream.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

struct SocketPair {
  SocketPair() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    ours = UniqueConnection(ends[0]);
    theirs = UniqueFd(ends[1]);
  }
  UniqueConnection ours;
  UniqueFd theirs;
};

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string bytes{'\0', '\0', static_cast<char>(payload.size()), static_cast<char>(type),
                    static_cast<char>(flags)};
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(stream >> shift & 0xFF);
  return bytes + payload;
}

std::string Call(uint32_t stream) {
  return Frame(FrameType::kHeaders, kEndHeaders | kEndStream, stream, "headers");
}

std::string Received(int fd) {
  std::string bytes(4096, '\0');
  const ssize_t count = ::read(fd, bytes.data(), bytes.size());
  bytes.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return bytes;
}

// The owner, with as much credit as a test gives it; its other end of the pair stands for gRPC.
class GuardedConnectionTest : public ::testing::Test, public ConnectionOwner {
 protected:
  void Send(const std::string& bytes) const {
    ASSERT_EQ(::write(client_.theirs.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    connection_->Pump();
  }

  bool RequestCredit(uint32_t cost) override {
    if (credit_ < cost) return false;
    credit_ -= cost;
    return true;
  }
  UniqueConnection ConnectToServer() override { return std::move(server_.ours); }
  std::string DenialReason() override { return {}; }
  void CountDenial(const std::string& /*why*/) override {}
  std::string AdmitCall(size_t /*of_connection*/) override {
    ++calls_;
    return {};
  }
  std::string AdmitMessage(uint64_t bytes) override {
    message_bytes_ += bytes;
    return message_bytes_ > 100 ? "has requests of too many bytes" : "";
  }
  void ReleaseCall(uint64_t message_bytes) override {
    --calls_;
    message_bytes_ -= message_bytes;
  }

  uint32_t credit_ = 1'000'000;
  int calls_ = 0;
  uint64_t message_bytes_ = 0;
  SocketPair client_;
  SocketPair server_;
  std::unique_ptr<GuardedConnection> connection_ =
      std::make_unique<GuardedConnection>(*this, std::make_unique<SocketStream>(std::move(client_.ours)), 40,
                                          GuardedConnection::Clock::time_point::max());
  const std::string begin_ =
      std::string(kHttp2Preface) + Frame(FrameType::kSettings, 0, 0, std::string(6, '\0'));
};

TEST_F(GuardedConnectionTest, PassesOnWhatIsPaidForAndCountsCalls) {
  Send(begin_ + Call(1) + Call(3));
  EXPECT_EQ(Received(server_.theirs.get()), begin_ + Call(1) + Call(3));
  EXPECT_EQ(calls_, 2);
  const std::string answer = Frame(FrameType::kHeaders, kEndHeaders | kEndStream, 3, "ok");
  ASSERT_EQ(::write(server_.theirs.get(), answer.data(), answer.size()), static_cast<ssize_t>(answer.size()));
  connection_->Pump();
  EXPECT_EQ(Received(client_.theirs.get()), answer);
  EXPECT_EQ(calls_, 1);
  connection_.reset();
  EXPECT_EQ(calls_, 0);
}

TEST_F(GuardedConnectionTest, NothingReachesTheServerBeforeTheBeginningIsWhole) {
  for (const char byte : begin_.substr(0, begin_.size() - 1)) Send(std::string(1, byte));
  EXPECT_TRUE(server_.ours) << "it was served";
  Send(begin_.substr(begin_.size() - 1));
  EXPECT_EQ(Received(server_.theirs.get()), begin_);
}

TEST_F(GuardedConnectionTest, ACallThatWaitsForCreditIsNotUncounted) {
  Send(begin_ + Call(1));
  credit_ = 0;
  std::string calls;
  for (uint32_t stream = 3; stream < 63; stream += 2) calls += Call(stream);
  Send(calls);
  EXPECT_EQ(connection_->client_wait().events & EPOLLIN, 0U) << "it does not wait for credit";
  connection_->HangUp();
  connection_.reset();
  EXPECT_EQ(calls_, 0);
}

TEST_F(GuardedConnectionTest, CountsTheBytesOfOpenCalls) {
  const auto open = [](uint32_t stream) {
    return Frame(FrameType::kHeaders, kEndHeaders, stream, "headers");
  };
  const auto data = [](uint32_t stream) { return Frame(FrameType::kData, 0, stream, std::string(60, 'd')); };
  Send(begin_ + open(1) + data(1));
  EXPECT_EQ(message_bytes_, 60U);
  Send(Frame(FrameType::kResetStream, 0, 1, std::string(4, '\0')) + data(1));
  EXPECT_EQ(message_bytes_, 0U) << "nothing keeps those of a call that has ended";
  Send(open(3) + data(3) + open(5));
  EXPECT_EQ(connection_->fault(), "");
  (void)Received(server_.theirs.get());
  Send(data(5));
  EXPECT_EQ(connection_->fault(), "has requests of too many bytes");
  EXPECT_EQ(Received(server_.theirs.get()).find('d'), std::string::npos);
  connection_.reset();
  EXPECT_EQ(calls_, 0);
  EXPECT_EQ(message_bytes_, 0U);
}

TEST_F(GuardedConnectionTest, WhatBreaksARuleEndsItAndIsNotPassedOn) {
  Send(begin_ + Frame(FrameType::kPing, 0, 0, "short"));
  EXPECT_FALSE(connection_->fault().empty());
  EXPECT_EQ(connection_->client_wait().fd, -1);
  EXPECT_EQ(Received(server_.theirs.get()).find("short"), std::string::npos);
}

TEST_F(GuardedConnectionTest, NothingStaysOfAClientThatGoesAfterTheServerAndHasNotReadAll) {
  Send(begin_ + Call(1));
  const std::string bytes(4096, '\0');
  while ((connection_->client_wait().events & EPOLLOUT) == 0) {
    ASSERT_GT(::write(server_.theirs.get(), bytes.data(), bytes.size()), 0);
    connection_->Pump();
  }
  server_.theirs.reset();
  connection_->OnServerGone();
  EXPECT_FALSE(connection_->over()) << "the client may yet read the rest";
  connection_->HangUp();
  EXPECT_TRUE(connection_->over());
  EXPECT_EQ(calls_, 0);
}

TEST_F(GuardedConnectionTest, AClientThatSendsNoMoreIsLetGo) {
  Send(begin_ + Call(1));
  ASSERT_EQ(::shutdown(client_.theirs.get(), SHUT_WR), 0);
  connection_->Pump();
  EXPECT_EQ(connection_->client_wait().fd, -1);
  connection_.reset();
  EXPECT_EQ(calls_, 0);
}

}  // namespace
}  // namespace pinfeed
