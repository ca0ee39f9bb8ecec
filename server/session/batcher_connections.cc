// SPDX-License-Identifier: Apache-2.0
#include "server/session/batcher_connections.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "common/base/log.h"
#include "server/memory/host_memory_ledger.h"

namespace pinfeed {
namespace {

constexpr std::chrono::hours kLongestDeadline(24);
constexpr char kTakesFour[] = "a place at a batcher takes four";
constexpr std::ptrdiff_t kMaxInvitations = 256;  // of one user. Each has memory and two descriptors
// Timers cannot be cancelled. While requests wait for later deadlines, this bounds how many there are.
constexpr std::chrono::seconds kLongestTimer(1);

}  // namespace

// Purpose: the socket and the memory of one process. Owns them. Threads: any.
class BatcherConnections::Client final : public BatcherQueue::Client {
 public:
  Client(UniqueConnection fd, std::shared_ptr<HostArena> memory)
      : fd_(std::move(fd)), memory_(std::move(memory)) {}

  Result<std::span<const std::byte>> Read(uint32_t slot, uint64_t bytes) override {
    RETURN_IF_ERROR(HostMemoryLedger::ForThisProcess().large_samples().Try(
        [&] { return memory_->PrepareForClient(slot, 1); }));
    return std::span<const std::byte>(memory_->FillAddress({slot, 0, 1, 0}, kRequestTensor), bytes);
  }
  void Answer(uint32_t slot, const Status& status, std::span<const std::byte> answer) override {
    if (!answer.empty()) {  // its memory was allocated for the request, which was read
      if (const Status kept = memory_->CheckNothingGivenBack(); !kept.ok())
        return Send({0, 0, 0, slot, 0}, kept);
      std::ranges::copy(answer, memory_->FillAddress({slot, 0, 1, 0}, kAnswerTensor));
    }
    Send({0, 0, 0, slot, static_cast<uint32_t>(answer.size())}, status);
  }
  void HangUp() override { ::shutdown(fd_.get(), SHUT_RDWR); }
  void Send(const BatcherMessage& message, const Status& status) {
    // There is one answer for each slot at a time, and the socket has room for all of them. A process that
    // does not read is treated as one that hung up.
    if (!SendAnswered(fd_.get(), message, status).ok()) HangUp();
  }
  int fd() const { return fd_.get(); }

 private:
  const UniqueConnection fd_;
  const std::shared_ptr<HostArena> memory_;
};

Result<Token> BatcherConnections::Invite(const Peer& peer, BatcherPlace place) {
  const auto token = RandomBytes<Token>();
  {
    const MutexLock lock(mutex_);
    const auto is_theirs = [&](const Invitation& one) { return one.peer.uid == peer.uid; };
    if (std::ranges::count_if(invitations_, is_theirs) >= kMaxInvitations) {
      return ResourceExhausted("join a batcher: this user (uid " + std::to_string(peer.uid) + ") has " +
                               std::to_string(kMaxInvitations) +
                               " invitations that nobody has used, which is the limit; they expire after " +
                               std::to_string(invitation_time_.count()) + " ms");
    }
    invitations_.push_back({token, peer, std::move(place)});
  }
  loop_.Post([this, token] {
    loop_.At(EventLoop::Clock::now() + invitation_time_, [this, token] { Expire(token); });
  });
  return token;
}

void BatcherConnections::Expire(const Token& token) {
  std::vector<Invitation> late;  // freed without the lock
  const MutexLock lock(mutex_);
  const auto is_it = [&](const Invitation& one) { return one.token == token; };
  const auto found = std::ranges::find_if(invitations_, is_it);
  if (found == invitations_.end()) return;
  late.push_back(std::move(*found));
  invitations_.erase(found);
}

Result<BatcherPlace> BatcherConnections::Redeem(const uint8_t (&token)[kTokenBytes], const Peer& peer) {
  const MutexLock lock(mutex_);
  auto found = invitations_.end();
  for (auto one = invitations_.begin(); one != invitations_.end(); ++one)
    if (TokensEqual(one->token, token) && one->peer == peer)
      found = one;  // no early exit: the time reveals nothing
  if (found == invitations_.end()) {
    return Status(Code::kUnauthenticated, "join a batcher: the token is no invitation for this process (" +
                                              Describe(peer) +
                                              "): it was used, or came too late; ask for another");
  }
  BatcherPlace place = std::move(found->place);
  invitations_.erase(found);
  return place;
}

Status BatcherConnections::Admit(const Peer& peer, const LifelineFrame& frame, UniqueConnection& fd) {
  ASSIGN_OR_RETURN(BatcherPlace place, Redeem(frame.token, peer));
  const ConnectionId id = next_id_++;
  Connection connection;
  connection.peer = peer;
  connection.place = std::move(place);
  ASSIGN_OR_RETURN(connection.pidfd, OpenPeerPidfd(fd.get(), peer.pid));
  ASSIGN_OR_RETURN(connection.room, room_.Take(peer.uid, 4, kTakesFour).WithContext("join a batcher"));
  RETURN_IF_ERROR(CheckConnectionRoom(connection.pidfd.get(), kTakesFour).WithContext("join a batcher"));
  const std::array<int, kLifelineFdsProducer> fds = {connection.place.memory->fd()};
  RETURN_IF_ERROR(SendWelcome(fd.get(), fds));
  connection.client = std::make_shared<Client>(std::move(fd), connection.place.memory);
  Status status = Watch(id, connection);
  BatcherQueue& queue = *connection.place.queue;
  if (status.ok() && !connection.place.consumer) status = queue.AddClient(connection.client);
  if (!status.ok()) {  // the process sees the hang-up
    spdlog::warn("a process could not join a batcher ({}): {}", Describe(peer), status.ToString());
    return OkStatus();
  }
  if (connection.place.consumer) {
    queue.AddConsumer(id, peer.pid);
    Poll(connection.place.queue);
  }
  connections_.emplace(id, std::move(connection));
  return OkStatus();
}

Status BatcherConnections::Watch(ConnectionId id, Connection& connection) {
  ASSIGN_OR_RETURN(connection.watched_socket,
                   loop_.Watch(connection.client->fd(), EPOLLIN | EPOLLRDHUP,
                               [this, id](uint32_t /*events*/) { OnReadable(id); }));
  ASSIGN_OR_RETURN(connection.watched_pidfd, loop_.Watch(connection.pidfd.get(), EPOLLIN,
                                                         [this, id](uint32_t /*events*/) { End(id); }));
  return OkStatus();
}

void BatcherConnections::OnReadable(ConnectionId id) {
  Connection& connection = connections_.at(id);
  static constexpr std::array kOfClient = {LifelineKind::kRequest, LifelineKind::kCancel};
  static constexpr std::array kOfConsumer = {LifelineKind::kTake, LifelineKind::kAnswer};
  const bool consumer = connection.place.consumer;
  const ReceivedFrame received =
      ReceiveFrame(connection.client->fd(), consumer ? std::span(kOfConsumer) : std::span(kOfClient));
  if (received.kind == ReceivedFrame::Kind::kNothing) return;
  if (received.kind == ReceivedFrame::Kind::kHangUp) return End(id);
  Status status = InvalidArgument("lifeline: " + received.fault);
  if (received.kind == ReceivedFrame::Kind::kFrame) {
    status = consumer ? OnConsumerFrame(id, connection, received.frame)
                      : OnClientFrame(connection, received.frame);
  }
  if (status.ok()) return;
  refusals_.Count(Refusal::kFrame, Describe(connection.peer) + ": " + status.message());
  End(id);
}

Status BatcherConnections::OnClientFrame(Connection& connection, const LifelineFrame& frame) {
  const BatcherMessage& message = frame.batcher;
  BatcherQueue& queue = *connection.place.queue;
  const HostArena& memory = *connection.place.memory;
  if (message.slot >= memory.slot_count()) {
    return InvalidArgument("a request in slot " + std::to_string(message.slot) + " of " +
                           std::to_string(memory.slot_count()));
  }
  if (frame.kind == static_cast<uint32_t>(LifelineKind::kCancel)) {
    queue.CancelRequest(connection.client, message.slot);
    return OkStatus();
  }
  const uint64_t room = memory.layout().tensors[kRequestTensor].sample_bytes;
  if (message.bytes > room) {
    return InvalidArgument("a request of " + std::to_string(message.bytes) + " bytes in a slot for " +
                           std::to_string(room));
  }
  // No request waits for ever.
  const uint64_t longest = std::chrono::microseconds(kLongestDeadline).count();
  const uint64_t timeout = message.timeout_us == 0 ? longest : std::min(message.timeout_us, longest);
  BatcherQueue::Request request{connection.client, message.slot, message.bytes,
                                BatcherQueue::Clock::now() + std::chrono::microseconds(timeout)};
  RETURN_IF_ERROR(queue.Submit(std::move(request)));
  Poll(connection.place.queue);
  return OkStatus();
}

Status BatcherConnections::OnConsumerFrame(ConnectionId id, const Connection& connection,
                                           const LifelineFrame& frame) {
  const BatcherMessage& message = frame.batcher;
  BatcherMessage reply{message.epoch, message.batch_index, 0, 0, 0};
  if (frame.kind == static_cast<uint32_t>(LifelineKind::kTake)) {
    reply.bytes = connection.place.queue->Take({message.epoch, message.batch_index}, id);
    connection.client->Send(reply, OkStatus());
    return OkStatus();
  }
  if (std::ranges::find(answers_, id, &Answers::consumer) != answers_.end())
    return InvalidArgument("answers that came before those of the last batch were passed on");
  Result<std::vector<BatcherQueue::Output>> outputs = ReadOutputs(connection, message);
  if (!outputs.ok()) {
    connection.client->Send(reply, outputs.status());
    return OkStatus();
  }
  answers_.push_back({id, reply, *std::move(outputs)});
  if (answers_.size() == 1) PassAnswers();  // otherwise it is posted
  return OkStatus();
}

void BatcherConnections::PassAnswers() {
  if (answers_.empty()) return;
  Answers answers = std::move(answers_.front());
  answers_.pop_front();
  // Without its connection, the queue has dealt the requests again, or answered them with an error.
  if (const auto found = connections_.find(answers.consumer); found != connections_.end()) {
    const Connection& connection = found->second;
    const Status kept = connection.place.memory->CheckNothingGivenBack();
    const Result<uint32_t> answered =
        kept.ok() ? connection.place.queue->Answer({answers.reply.epoch, answers.reply.batch_index},
                                                   answers.consumer, answers.outputs, &answers.next)
                  : kept;
    if (answered.ok()) answers.reply.bytes += *answered;
    if (!answered.ok() || answers.next == answers.outputs.size()) {
      connection.client->Send(answers.reply, answered.status());
    } else {
      answers_.push_back(std::move(answers));
    }
  }
  if (!answers_.empty()) loop_.Post([this] { PassAnswers(); });
}

Result<std::vector<BatcherQueue::Output>> BatcherConnections::ReadOutputs(const Connection& connection,
                                                                          const BatcherMessage& message) {
  HostArena& memory = *connection.place.memory;
  const uint32_t most = memory.layout().batch_size;
  const uint64_t room = memory.layout().tensors[kAnswersTensor].sample_bytes;
  if (message.bytes > most) {
    return InvalidArgument("answer: " + std::to_string(message.bytes) +
                           " answers, where a batch has at most " + std::to_string(most));
  }
  const Piece piece{0, 0, most, 0};
  RETURN_IF_ERROR(memory.CheckNothingGivenBack());
  // The consumer may change its memory at any time: each length is read once.
  const auto* const first = reinterpret_cast<const int64_t*>(memory.FillAddress(piece, kLengthsTensor));
  const std::vector<int64_t> lengths(first, first + message.bytes);
  std::vector<BatcherQueue::Output> outputs;
  for (size_t i = 0; i < lengths.size(); ++i) {
    // A negative length, one's complement, is that of an error's text.
    const bool failed = lengths[i] < 0;
    const auto bytes = static_cast<uint64_t>(failed ? ~lengths[i] : lengths[i]);
    outputs.push_back(
        {failed, bytes, {memory.FillAddress(piece, kAnswersTensor) + i * room, std::min(bytes, room)}});
  }
  return outputs;
}

void BatcherConnections::Poll(const std::shared_ptr<BatcherQueue>& queue) {
  std::optional<BatcherQueue::Time> due = queue->Poll();
  if (!due) return;
  due = std::min(*due, BatcherQueue::Clock::now() + kLongestTimer);
  const auto [timer, added] = timers_.try_emplace(queue.get(), *due);
  if (!added && timer->second <= *due) return;
  timer->second = *due;
  // Keeps the queue, so that its address is not another's meanwhile.
  loop_.At(*due, [this, queue, due = *due] {
    const auto found = timers_.find(queue.get());
    if (found == timers_.end() || found->second != due) return;  // another timer came before
    timers_.erase(found);
    Poll(queue);
  });
}

void BatcherConnections::End(ConnectionId id) {
  Connection ended = std::move(connections_.at(id));
  connections_.erase(id);
  ended.client->HangUp();
  if (ended.place.consumer) {
    ended.place.queue->RemoveConsumer(id);
  } else {
    ended.place.queue->RemoveClient(ended.client);
  }
  Poll(ended.place.queue);
}

}  // namespace pinfeed
