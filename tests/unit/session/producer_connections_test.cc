// SPDX-License-Identifier: Apache-2.0
#include "server/session/producer_connections.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <future>
#include <utility>
#include <vector>

#include "tests/unit/session/opener_fixture.h"

namespace pinfeed {
namespace {

// Two sessions of one group, whose batches processes fill.
class ProducerConnectionsTest : public OpenerTest {
 protected:
  ProducerConnectionsTest() {
    table_.Start();
    loop_->Start();
  }
  ~ProducerConnectionsTest() override {
    loop_->Stop();
    connections_.Clear();
    for (const auto& session : sessions_.All()) sessions_.Depart(session, {DepartureReason::kDaemonStops});
    table_.Stop();
  }

  std::shared_ptr<Session> Open() {
    OpenFeedArguments arguments;
    FeedSpec& spec = arguments.spec;
    spec.batch_size = spec.slots = 4;
    spec.backend = Backend::kHost;
    spec.sharing = Sharing::kBroadcast;
    spec.group = "shared";
    spec.group_size = 2;
    spec.dataset.produced = ProducedDataset{"numbers", 10'000, {{"number", DType::kUint8, {64}}}, "", 0, 0};
    auto session = std::get<std::shared_ptr<Session>>(opener_.Open(peer_, arguments, nullptr).value());
    EXPECT_OK(SessionTable::Attach(*session));
    return session;
  }
  template <typename Work>
  auto OnLoop(Work work) {
    std::packaged_task<decltype(work())()> task(std::move(work));
    loop_->Post([&] { task(); });
    return task.get_future().get();
  }
  Status Admit(const Token& token, int socket) {
    return OnLoop([&] {
      UniqueConnection fd(socket);
      LifelineFrame frame = MakeLifelineFrame(LifelineKind::kProduce);
      std::ranges::copy(token, frame.token);
      return connections_.Admit(peer_, frame, fd);
    });
  }
  // Returns what became of it, and the process's end of the connection.
  std::pair<Status, UniqueFd> Connect(const Token& token) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    UniqueFd ours(ends[0]);
    return {Admit(token, ends[1]), std::move(ours)};
  }

  const Peer peer_{.pid = ::getpid(), .uid = kOwner, .gid = 1};
  Refusals refusals_;
  ConnectionRoom room_;
  const std::unique_ptr<EventLoop> loop_ = EventLoop::Create("sessions").value();
  ProducerConnections connections_{*loop_, sessions_, refusals_, room_};
};

TEST_F(ProducerConnectionsTest, ATokenAdmitsNobodyBehindTheEndOfItsSession) {
  const std::shared_ptr<Session> stays = Open(), ends = Open();
  // A status call may hold a session for longer than the table does.
  const std::vector<std::shared_ptr<Session>> held = sessions_.All();
  OnLoop([&] {
    connections_.Dismiss(*ends);
    return sessions_.Depart(ends, {DepartureReason::kBye}).ended;
  });
  const auto [refused, one] = Connect(ends->token);
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("its session has ended"));
  EXPECT_OK(Connect(stays->token).first);
}

}  // namespace
}  // namespace pinfeed
