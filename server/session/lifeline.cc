// SPDX-License-Identifier: Apache-2.0
#include "server/session/lifeline.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/log_pace.h"
#include "server/net/descriptor_room.h"

namespace pinfeed {
namespace {

constexpr uint32_t kLifelineLinesASecond = 200;
constexpr int kAcceptsAtOnce = 32;  // so that a flood of connections leaves time for the rest
constexpr std::chrono::milliseconds kReleasePollInterval(100);
constexpr std::chrono::milliseconds kAcceptPause(100);  // when no descriptor is left
// An exiting process closes its sockets shortly before it ends.
constexpr std::chrono::seconds kOrphanLogDelay(1);

// The limit for all users together: a quarter of the descriptors, since sessions need descriptors, too.
size_t MaxSilent() {
  return std::clamp<size_t>(DescriptorLimit() / 4, 1, 1024);
}

}  // namespace

Result<std::unique_ptr<LifelineServer>> LifelineServer::Create(Listener listener,
                                                               std::chrono::milliseconds hello_timeout,
                                                               SessionTable& sessions, Refusals& refusals) {
  ASSIGN_OR_RETURN(std::unique_ptr<EventLoop> loop, EventLoop::Create("sessions"));
  return std::unique_ptr<LifelineServer>(
      new LifelineServer(std::move(listener), std::move(loop), hello_timeout, sessions, refusals));
}

LifelineServer::LifelineServer(Listener listener, std::unique_ptr<EventLoop> loop,
                               std::chrono::milliseconds hello_timeout, SessionTable& sessions,
                               Refusals& refusals)
    : listener_(std::move(listener)),
      loop_(std::move(loop)),
      hello_timeout_(hello_timeout),
      sessions_(sessions),
      refusals_(refusals),
      producers_(*loop_, sessions_, refusals_, room_),
      batchers_(*loop_, refusals_, room_, hello_timeout_),
      silent_(std::min(kMaxSilentPerUser, MaxSilent()), MaxSilent()) {}

LifelineServer::~LifelineServer() {
  Stop();
}

Status LifelineServer::Start() {
  ASSIGN_OR_RETURN(watched_listener_,
                   loop_->Watch(listener_.fd(), EPOLLIN, [this](uint32_t /*events*/) { OnListener(); }));
  loop_->Start();
  return OkStatus();
}

void LifelineServer::Stop() {
  loop_->Stop();
  producers_.Clear();
  batchers_.Clear();
  connections_.clear();
}

void LifelineServer::Expect(const std::shared_ptr<Session>& session) {
  loop_->Post([this, weak = std::weak_ptr(session), deadline = EventLoop::Clock::now() + hello_timeout_] {
    loop_->At(deadline, [this, weak] {
      const std::shared_ptr<Session> late = weak.lock();
      if (late == nullptr || late->state != SessionState::kPending) return;
      refusals_.Count(Refusal::kExpired, Describe(*late) + " did not connect its lifeline within " +
                                             std::to_string(hello_timeout_.count()) + " ms");
      sessions_.Depart(late, {DepartureReason::kNeverCame});
    });
  });
}

void LifelineServer::Abandon(const std::shared_ptr<Session>& session) {
  loop_->Post([this, weak = std::weak_ptr(session)] {
    const std::shared_ptr<Session> left = weak.lock();
    if (left == nullptr || left->state != SessionState::kPending) return;
    sessions_.Depart(left, {DepartureReason::kCancelled});
  });
}

void LifelineServer::Evict(uint64_t session_id, const Status& error,
                           std::function<void(const Result<size_t>&)> done) {
  loop_->Post([this, session_id, error, done = std::move(done)] { done(EvictNow(session_id, error)); });
}

Result<size_t> LifelineServer::EvictNow(uint64_t session_id, const Status& error) {
  const Departure evicted{DepartureReason::kEvicted, error};
  const auto connected = std::find_if(connections_.begin(), connections_.end(), [&](const auto& entry) {
    return entry.second.session != nullptr && entry.second.session->id == session_id;
  });
  if (connected != connections_.end()) {
    const std::shared_ptr<Session> session = connected->second.session;
    if (HasLeft(*session)) {
      if (session->feed->SnapshotOf(*session).slots_lent == 0) {
        EndSession(connected->first, evicted);
        return size_t{0};
      }
      return FailedPrecondition("evict: " + Describe(*session) + " has departed from its feed already (" +
                                SessionStateName(session->state) +
                                "); end its process to reclaim the batches that it holds");
    }
    const SessionTable::Departed departed = Depart(session, evicted);
    if (departed.ended) EndSession(connected->first, evicted);
    return departed.kept;
  }
  if (const std::shared_ptr<Session> session = sessions_.Find(session_id)) {
    // Its client has not connected yet. If it were told that there is no session, it would ask for another
    // one.
    evicted_.push_back({session->token, session->peer, error});
    loop_->At(EventLoop::Clock::now() + hello_timeout_, [this] { evicted_.pop_front(); });
    sessions_.Depart(session, evicted);
    return size_t{0};
  }
  return NotFound("evict: there is no session " + std::to_string(session_id) +
                  "; `pinfeed status` lists the sessions");
}

void LifelineServer::OnListener() {
  const Status accepted = listener_.Accept(
      kAcceptsAtOnce, [this](Listener::Connection connection) { AddConnection(std::move(connection)); });
  if (accepted.ok()) return;
  watched_listener_.Change(0);
  loop_->At(EventLoop::Clock::now() + kAcceptPause, [this] { watched_listener_.Change(EPOLLIN); });
}

void LifelineServer::AddConnection(Listener::Connection accepted) {
  const ConnectionId id = next_id_++;
  Result<EventLoop::Watched> watched = loop_->Watch(accepted.fd.get(), EPOLLIN | EPOLLRDHUP,
                                                    [this, id](uint32_t /*events*/) { OnReadable(id); });
  if (!watched.ok()) {
    refusals_.Count(Refusal::kDescriptors, watched.status().ToString());
    return;
  }
  Connection& connection = connections_[id];
  connection.peer = accepted.peer;
  connection.fd = std::move(accepted.fd);
  connection.watched_fd = *std::move(watched);
  loop_->At(EventLoop::Clock::now() + hello_timeout_, [this, id] {
    const auto found = connections_.find(id);
    if (found == connections_.end() || found->second.session != nullptr) return;
    Refuse(id, Refusal::kFrame, Status(Code::kDeadlineExceeded, "attach: no hello came in time"));
  });
  if (const std::optional<ConnectionId> goes = silent_.Add(connection.peer.uid, id)) {
    Refuse(*goes, Refusal::kFrame,
           ResourceExhausted("attach: no hello came before other connections took its place"));
  }
}

void LifelineServer::OnReadable(ConnectionId id) {
  Connection& connection = connections_.at(id);
  static constexpr std::array kFirst = {LifelineKind::kHello, LifelineKind::kProduce, LifelineKind::kJoin};
  static constexpr std::array kLater = {LifelineKind::kBye, LifelineKind::kLeave};
  const size_t later = connection.has_left ? 1 : 2;
  const ReceivedFrame received =
      ReceiveFrame(connection.fd.get(), connection.session == nullptr ? std::span<const LifelineKind>(kFirst)
                                                                      : std::span(kLater).first(later));
  switch (received.kind) {
    case ReceivedFrame::Kind::kNothing:
      return;
    case ReceivedFrame::Kind::kHangUp:
      return OnHangUp(id, connection);
    case ReceivedFrame::Kind::kBad:
      return Refuse(id, Refusal::kFrame, InvalidArgument("lifeline: " + received.fault));
    case ReceivedFrame::Kind::kFrame:
      return OnFrame(id, connection, received.frame);
  }
}

void LifelineServer::OnFrame(ConnectionId id, Connection& connection, const LifelineFrame& frame) {
  if (frame.kind == static_cast<uint32_t>(LifelineKind::kProduce))
    return HandOver(id, connection, frame, producers_);
  if (frame.kind == static_cast<uint32_t>(LifelineKind::kJoin))
    return HandOver(id, connection, frame, batchers_);
  if (connection.session == nullptr) return OnHello(id, connection, frame);
  if (frame.kind == static_cast<uint32_t>(LifelineKind::kLeave)) {
    connection.has_left = true;
    Depart(connection.session, {DepartureReason::kLeft, {Code::kCancelled, "its client has left the feed"}});
    return;
  }
  EndSession(id, {DepartureReason::kBye});
}

void LifelineServer::OnHello(ConnectionId id, Connection& connection, const LifelineFrame& frame) {
  const Status attached = AttachSession(id, connection, frame);
  if (attached.ok()) return;
  if (connection.session == nullptr) return Refuse(id, Refusal::kToken, attached);
  // The token was correct, so the session belongs to this client, but it cannot be served.
  SendRefusal(connection.fd.get(), attached);
  EndSession(id, {DepartureReason::kNotServed, attached});
}

template <typename Connections>
void LifelineServer::HandOver(ConnectionId id, Connection& connection, const LifelineFrame& frame,
                              Connections& to) {
  connection.watched_fd.End();
  const Status admitted = to.Admit(connection.peer, frame, connection.fd);
  if (!admitted.ok()) {
    const bool is_unknown = admitted.code() == Code::kUnauthenticated;
    return Refuse(id, is_unknown ? Refusal::kToken : Refusal::kRequest, admitted);
  }
  silent_.Remove(connection.peer.uid, id);
  connections_.erase(id);
}

Status LifelineServer::AttachSession(ConnectionId id, Connection& connection, const LifelineFrame& frame) {
  for (const Evicted& gone : evicted_)
    if (TokensEqual(gone.token, frame.token) && gone.peer == connection.peer) return gone.error;
  std::shared_ptr<Session> opened = sessions_.FindByToken(frame.token);
  if (opened == nullptr || opened->state != SessionState::kPending || opened->peer != connection.peer) {
    return Status(Code::kUnauthenticated, "attach: the token opens no pending session of this process (" +
                                              Describe(connection.peer) + "); open the feed again");
  }
  connection.session = std::move(opened);
  silent_.Remove(connection.peer.uid, id);
  Session& session = *connection.session;
  RETURN_IF_ERROR(WatchSession(id, connection));
  RETURN_IF_ERROR(SessionTable::Attach(session));
  std::vector<int> fds = {session.pages->publish_fd(), session.pages->release_fd(),
                          session.pages->doorbell_fd()};
  if (const int arena = session.arena().fd(); arena >= 0) fds.push_back(arena);
  if (session.resident != nullptr) fds.push_back(session.resident->arena().fd());
  const UniqueFd link = decode_links_.Add(session, connection.fd.get());
  if (link) fds.push_back(link.get());
  RETURN_IF_ERROR(SendWelcome(connection.fd.get(), fds));
  const LogScope scope(ContextOf(session));
  static LogPace pace(kLifelineLinesASecond);
  if (const auto more = pace.Admit()) spdlog::info("{}: attached{}", Describe(session), *more);
  return OkStatus();
}

Status LifelineServer::WatchSession(ConnectionId id, Connection& connection) {
  ASSIGN_OR_RETURN(connection.pidfd, OpenPeerPidfd(connection.fd.get(), connection.peer.pid));
  ASSIGN_OR_RETURN(connection.watched_pidfd,
                   loop_->Watch(connection.pidfd.get(), EPOLLIN, [this, id](uint32_t /*events*/) {
                     EndSession(id, {DepartureReason::kProcessEnded});
                   }));
  // Edge-triggered and never read: each ring is an edge. The client shares the descriptor's flags, so it
  // could make a read block.
  ASSIGN_OR_RETURN(connection.watched_doorbell,
                   loop_->Watch(connection.session->pages->doorbell_fd(), EPOLLIN | EPOLLET,
                                [session = connection.session.get()](uint32_t /*events*/) {
                                  session->feed->ReadReleases();
                                }));
  if (connection.session->feed->spec().sharing == Sharing::kQueue) PollReleases(id);
  return OkStatus();
}

void LifelineServer::PollReleases(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second.watched_doorbell) return;
  found->second.session->feed->ReadReleases();
  loop_->At(EventLoop::Clock::now() + kReleasePollInterval, [this, id] { PollReleases(id); });
}

void LifelineServer::OnHangUp(ConnectionId id, Connection& connection) {
  connection.watched_fd.End();
  connection.fd.reset();
  if (connection.session == nullptr) {
    silent_.Remove(connection.peer.uid, id);
    connections_.erase(id);
    return;
  }
  if (MayHold(*connection.session)) return;  // it may release what it holds
  const SessionTable::Departed departed = Depart(
      connection.session, {DepartureReason::kHungUp,
                           Status(Code::kAborted,
                                  "this session's connection to the daemon has ended, though its process "
                                  "lives: did the program close descriptors that are not its own? Its "
                                  "group goes on without it; open the feed again")});
  if (departed.kept == 0)
    connection.watched_doorbell.End();
  else if (connection.session->feed->spec().sharing != Sharing::kQueue)  // which is polled already
    PollReleases(id);                                                    // its doorbell may be closed, too
  loop_->At(EventLoop::Clock::now() + kOrphanLogDelay, [this, id] {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    const LogScope scope(ContextOf(*found->second.session));
    spdlog::warn(
        "{}: its lifeline hung up but its process lives; its memory stays charged until the process ends",
        Describe(*found->second.session));
  });
}

void LifelineServer::Refuse(ConnectionId id, Refusal refusal, const Status& error) {
  Connection& connection = connections_.at(id);
  // What has ended meanwhile, or was evicted, is no fault of the peer.
  if (error.code() != Code::kUnavailable && error.code() != Code::kAborted)
    refusals_.Count(refusal, Describe(connection.peer) + ": " + error.message());
  SendRefusal(connection.fd.get(), error);
  OnHangUp(id, connection);
}

void LifelineServer::EndSession(ConnectionId id, const Departure& departure) {
  Connection& connection = connections_.at(id);
  // The socket outlives the session: a client that sees the hang-up relies on its memory being free.
  const Connection ended = std::move(connection);
  connections_.erase(id);
  Depart(ended.session, departure);
}

SessionTable::Departed LifelineServer::Depart(const std::shared_ptr<Session>& session,
                                              const Departure& departure) {
  // First, since later batches may be beyond what they know of.
  producers_.Dismiss(*session);
  const SessionTable::Departed departed = sessions_.Depart(session, departure);
  // Afterwards, so that a member whose link ends can see that it has departed itself.
  decode_links_.Remove(session->id);
  return departed;
}

}  // namespace pinfeed
