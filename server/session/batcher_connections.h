// SPDX-License-Identifier: Apache-2.0
// Serves the processes that submit requests to batchers and those that answer them, on the thread of the
// lifelines. In: invitations, connections, frames, process ends. Out: requests, answers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/base/unique_handle.h"
#include "common/os/foreign_fds.h"
#include "server/loading/batcher_queue.h"
#include "server/net/descriptor_room.h"
#include "server/net/event_loop.h"
#include "server/net/peer.h"
#include "server/net/refusals.h"
#include "server/session/lifeline_frame.h"
#include "server/session/open_feed.h"
#include "server/session/token.h"

namespace pinfeed {

// Purpose: admits clients and consumers by invitation, and passes what they say to the batcher's queue; calls
// the queue when something is due. Owns: the invitations, the connections, a pidfd for each. Borrows: the
// loop, the refusals and the room (outlive it). Threads: Invite from any; the rest on the loop's thread, or
// after it has stopped. Nothing blocks. Errors: a fault of a process ends its connection and is counted.
// Invariants: 1. an invitation admits the process that asked for it, once, within the time; 2. a number,
// index or length from a process or its memory is checked before use.
class BatcherConnections {
 public:
  BatcherConnections(EventLoop& loop, Refusals& refusals, ConnectionRoom& room,
                     std::chrono::milliseconds invitation_time)
      : loop_(loop), refusals_(refusals), room_(room), invitation_time_(invitation_time) {}

  // kResourceExhausted while this user has too many invitations that nobody has used.
  Result<Token> Invite(const Peer& peer, BatcherPlace place) PF_EXCLUDES(mutex_);
  // Takes over a connection with this first frame. On an error `fd` is left to the caller, who
  // refuses the process.
  Status Admit(const Peer& peer, const LifelineFrame& frame, UniqueConnection& fd);
  void Clear() {
    answers_.clear();
    connections_.clear();
  }

 private:
  using ConnectionId = uint64_t;  // of a consumer: its BatcherQueue::ConsumerId
  class Client;
  struct Connection {
    Peer peer;
    BatcherPlace place;
    std::shared_ptr<Client> client;  // of a consumer only the way back is used
    UniqueFd pidfd;
    ConnectionRoom::Taken room;
    EventLoop::Watched watched_socket;
    EventLoop::Watched watched_pidfd;
  };
  struct Invitation {
    Token token;
    Peer peer;
    BatcherPlace place;
  };

  Result<BatcherPlace> Redeem(const uint8_t (&token)[kTokenBytes], const Peer& peer) PF_EXCLUDES(mutex_);
  void Expire(const Token& token) PF_EXCLUDES(mutex_);
  Status Watch(ConnectionId id, Connection& connection);
  void OnReadable(ConnectionId id);
  Status OnClientFrame(Connection& connection, const LifelineFrame& frame);
  Status OnConsumerFrame(ConnectionId id, const Connection& connection, const LifelineFrame& frame);
  // What a consumer says to the requests of a batch, on its way to them.
  struct Answers {
    ConnectionId consumer;
    BatcherMessage reply;  // counts those that were still waited for
    std::vector<BatcherQueue::Output> outputs;
    size_t next = 0;  // of the outputs
  };
  static Result<std::vector<BatcherQueue::Output>> ReadOutputs(const Connection& connection,
                                                               const BatcherMessage& message);
  // Passes on some of the answers that are under way, those of each consumer in turn.
  void PassAnswers();
  // Polls the queue, and again when something is due.
  void Poll(const std::shared_ptr<BatcherQueue>& queue);
  void End(ConnectionId id);

  EventLoop& loop_;
  Refusals& refusals_;
  ConnectionRoom& room_;
  const std::chrono::milliseconds invitation_time_;
  ConnectionId next_id_ = 1;
  std::map<ConnectionId, Connection> connections_;
  std::map<const BatcherQueue*, BatcherQueue::Time> timers_;  // the earliest of each queue
  std::deque<Answers> answers_;
  Mutex mutex_;
  std::vector<Invitation> invitations_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
