// SPDX-License-Identifier: Apache-2.0
#include "server/session/producer_connections.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "common/base/log.h"
#include "common/base/log_pace.h"
#include "server/session/lifeline_frame.h"

namespace pinfeed {
namespace {

constexpr uint32_t kProducerLinesASecond = 200;
constexpr size_t kDepartedKept = 256;
// Descriptors.
constexpr char kTakesTwo[] = "a producer takes two";
constexpr char kTakesOne[] = "such a batch takes one";
// An exiting process closes its sockets shortly before it ends.
constexpr std::chrono::seconds kProducerLogDelay(1);
// How often a producer with a time limit is checked, at least and at most.
constexpr std::chrono::milliseconds kMaxLateInterval(1000);
constexpr std::chrono::milliseconds kMinLateInterval(5);

}  // namespace

// Purpose: the socket of one producer. Owns it. Threads: any.
class ProducerConnections::Socket final : public ProducerGroup::Link {
 public:
  explicit Socket(UniqueConnection fd) : fd_(std::move(fd)) {}

  bool Send(const ProducerTask& task) override {
    // A producer that does not read has a few tasks in its socket, no more: it is treated like one that hung
    // up.
    const bool sent = SendTask(fd_.get(), task).ok();
    if (!sent) HangUp();
    return sent;
  }
  void HangUp() override { ::shutdown(fd_.get(), SHUT_RDWR); }
  void EndTasks() override { ::shutdown(fd_.get(), SHUT_WR); }
  int fd() const { return fd_.get(); }

 private:
  const UniqueConnection fd_;
};

Result<std::shared_ptr<Session>> ProducerConnections::SessionOf(const Peer& peer,
                                                                const uint8_t (&token)[kTokenBytes]) const {
  std::shared_ptr<Session> session = sessions_.FindByToken(token);
  const bool is_own = session != nullptr && session->peer.uid == peer.uid;
  if (is_own && session->state == SessionState::kAttached) return session;
  bool has_departed = is_own;
  for (const Token& departed : departed_)  // no early exit, so that the time reveals nothing
    if (TokensEqual(departed, token)) has_departed = true;
  if (has_departed) return Unavailable("attach a producer: its session has ended, or is not attached yet");
  return Status(Code::kUnauthenticated, "attach a producer: the token is that of no session of this user (" +
                                            Describe(peer) + "); ask for another");
}

Status ProducerConnections::Admit(const Peer& peer, const LifelineFrame& frame, UniqueConnection& fd) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, SessionOf(peer, frame.token));
  if (peer.pid == 0) {
    return FailedPrecondition(
        "attach a producer: its process is not visible to the daemon, so its end could not be seen; let both "
        "share a PID namespace");
  }
  const std::shared_ptr<ProducerGroup> group = session->feed->producer().processes();
  if (group == nullptr) {
    return FailedPrecondition("attach a producer: the daemon reads the dataset of " + Describe(*session) +
                              " itself; only a feed with dataset.produced has producers");
  }
  RETURN_IF_ERROR(group->CheckRoom(frame.code));
  const ConnectionId id = next_id_++;
  Connection connection;
  connection.peer = peer;
  connection.session = Describe(*session);
  connection.session_id = session->id;
  connection.group = group;
  ASSIGN_OR_RETURN(connection.pidfd, OpenPeerPidfd(fd.get(), peer.pid));
  ASSIGN_OR_RETURN(connection.room, room_.Take(peer.uid, 2, kTakesTwo).WithContext("attach a producer"));
  RETURN_IF_ERROR(CheckConnectionRoom(connection.pidfd.get(), kTakesTwo).WithContext("attach a producer"));
  // The welcome goes before the first task.
  const Arena* const staging = session->feed->producer().staging();
  const std::array<int, kLifelineFdsProducer> fds = {(staging == nullptr ? session->arena() : *staging).fd()};
  RETURN_IF_ERROR(SendWelcome(fd.get(), fds));
  connection.socket = std::make_shared<Socket>(std::move(fd));
  Status status = Watch(id, connection);
  if (status.ok()) {
    const Result<ProducerGroup::ProducerId> attached = group->Attach(connection.socket, peer.pid, frame.code);
    status = attached.status();
    if (attached.ok()) connection.producer = *attached;
  }
  const LogScope scope(ContextOf(*session));
  if (status.ok()) {
    static LogPace pace(kProducerLinesASecond);
    if (const auto more = pace.Admit())
      spdlog::info("{}: a producer attached ({}){}", Describe(*session), Describe(peer), *more);
    connections_.emplace(id, std::move(connection));
    CheckLate(id);
  } else {  // the producer sees the hang-up
    spdlog::warn("{}: a producer ({}) could not be attached: {}", Describe(*session), Describe(peer),
                 status.ToString());
  }
  return OkStatus();
}

Status ProducerConnections::Watch(ConnectionId id, Connection& connection) {
  ASSIGN_OR_RETURN(connection.watched_socket,
                   loop_.Watch(connection.socket->fd(), EPOLLIN | EPOLLRDHUP,
                               [this, id](uint32_t /*events*/) { OnReadable(id); }));
  ASSIGN_OR_RETURN(connection.watched_pidfd,
                   loop_.Watch(connection.pidfd.get(), EPOLLIN, [this, id](uint32_t /*events*/) {
                     Connection& ended = connections_.at(id);
                     ended.group->OnEnded(ended.producer);
                     connections_.erase(id);
                   }));
  return OkStatus();
}

void ProducerConnections::OnReadable(ConnectionId id) {
  Connection& connection = connections_.at(id);
  static constexpr std::array kExpected = {LifelineKind::kTaskDone, LifelineKind::kMemory};
  const ReceivedFrame received = ReceiveFrame(connection.socket->fd(), kExpected);
  if (received.kind == ReceivedFrame::Kind::kNothing) return;
  if (received.kind == ReceivedFrame::Kind::kHangUp) return OnHangUp(id);
  Status status = InvalidArgument("lifeline: " + received.fault);
  if (received.kind == ReceivedFrame::Kind::kFrame) {
    const LifelineFrame& frame = received.frame;
    status = frame.kind == static_cast<uint32_t>(LifelineKind::kMemory)
                 ? OnMemory(connection, frame.memory)
                 : connection.group->OnDone(connection.producer, frame.produce.task, ResultOf(frame));
  }
  if (status.ok()) return;
  refusals_.Count(Refusal::kFrame, Describe(connection.peer) + ": " + status.message());
  OnHangUp(id);
}

Status ProducerConnections::OnMemory(Connection& connection, const MemoryRequest& request) {
  auto room = room_.Take(connection.peer.uid, 1, kTakesOne);
  Result<UniqueFd> memory = room.ok() ? connection.group->GrantMemory(connection.producer, request.task,
                                                                      request.bytes, *std::move(room))
                                      : room.status().WithoutAdvice();
  if (memory.status().code() == Code::kInvalidArgument) return memory.status();
  if (memory.ok()) {
    const Status left = CheckConnectionRoom(memory->get(), kTakesOne);
    if (!left.ok()) memory = left.WithoutAdvice();
  }
  // One that does not read is treated like one that hung up, as for tasks.
  if (!SendMemory(connection.socket->fd(), request, memory).ok()) connection.socket->HangUp();
  return OkStatus();
}

void ProducerConnections::OnHangUp(ConnectionId id) {
  Connection& connection = connections_.at(id);
  connection.watched_socket.End();
  connection.socket->HangUp();
  if (!connection.group->OnHungUp(connection.producer)) {
    connections_.erase(id);
    return;
  }
  loop_.At(EventLoop::Clock::now() + kProducerLogDelay, [this, id] {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    spdlog::warn(
        "{}: a producer ({}) hung up, and its process lives and may still write to its batch, which waits "
        "until the process ends",
        found->second.session, Describe(found->second.peer));
  });
}

void ProducerConnections::CheckLate(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const std::chrono::milliseconds timeout = found->second.group->task_timeout();
  if (timeout.count() == 0) return;
  found->second.group->ReplaceLate(found->second.producer);
  loop_.At(EventLoop::Clock::now() + std::clamp(timeout / 4, kMinLateInterval, kMaxLateInterval),
           [this, id] { CheckLate(id); });
}

void ProducerConnections::Dismiss(const Session& session) {
  if (session.feed->producer().processes() == nullptr) return;
  if (std::ranges::find(departed_, session.token) != departed_.end()) return;  // it has left before it ends
  departed_.push_back(session.token);
  if (departed_.size() > kDepartedKept) departed_.pop_front();
  for (const auto& [id, connection] : connections_)
    if (connection.session_id == session.id) connection.group->Dismiss(connection.producer);
}

}  // namespace pinfeed
