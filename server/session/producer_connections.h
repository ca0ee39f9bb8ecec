// SPDX-License-Identifier: Apache-2.0
// Serves the processes that fill batches, on the thread of the lifelines. In: connections, frames, process
// ends. Out: producers of the sessions' feeds.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/os/foreign_fds.h"
#include "server/loading/producer_group.h"
#include "server/net/descriptor_room.h"
#include "server/net/event_loop.h"
#include "server/net/peer.h"
#include "server/net/refusals.h"
#include "server/session/session.h"
#include "server/session/session_table.h"
#include "server/session/token.h"

namespace pinfeed {

// Purpose: admits producers by their session's token, and passes what they say to their group. Owns: the
// connections, a pidfd for each. Borrows: the loop, the sessions, the refusals and the room (outlive it).
// Threads: the loop's, or any after it has stopped. Nothing blocks. Errors: a producer's fault ends its
// connection and is counted. Invariants: 1. a token admits processes of the session's user, while the session
// is attached; 2. a process that holds tasks is watched until it ends.
class ProducerConnections {
 public:
  ProducerConnections(EventLoop& loop, const SessionTable& sessions, Refusals& refusals, ConnectionRoom& room)
      : loop_(loop), sessions_(sessions), refusals_(refusals), room_(room) {}

  // Takes over a connection with this first frame. On an error `fd` is left to the caller, who refuses the
  // producer. kUnauthenticated: the token is that of no session of this user; kUnavailable: of one that is
  // not attached; kFailedPrecondition: the daemon fills the session's batches; or those of
  // ProducerGroup::CheckRoom.
  Status Admit(const Peer& peer, const LifelineFrame& frame, UniqueConnection& fd);
  // The session has departed from its feed: its producers get no more tasks there.
  void Dismiss(const Session& session);
  void Clear() { connections_.clear(); }

 private:
  using ConnectionId = uint64_t;
  class Socket;
  struct Connection {
    Peer peer;
    std::string session;  // described, for the log
    uint64_t session_id = 0;
    std::shared_ptr<ProducerGroup> group;
    ProducerGroup::ProducerId producer = 0;
    std::shared_ptr<Socket> socket;
    UniqueFd pidfd;
    ConnectionRoom::Taken room;
    EventLoop::Watched watched_socket;
    EventLoop::Watched watched_pidfd;
  };

  // The attached session that the token is of; otherwise the errors of Admit that concern the token.
  Result<std::shared_ptr<Session>> SessionOf(const Peer& peer, const uint8_t (&token)[kTokenBytes]) const;
  Status Watch(ConnectionId id, Connection& connection);
  void OnReadable(ConnectionId id);
  // Answers a producer that asks for memory of its own. Returns an error if the request is wrong.
  Status OnMemory(Connection& connection, const MemoryRequest& request);
  void OnHangUp(ConnectionId id);
  // Called periodically for each producer: see ProducerGroup::ReplaceLate.
  void CheckLate(ConnectionId id);

  EventLoop& loop_;
  const SessionTable& sessions_;
  Refusals& refusals_;
  ConnectionRoom& room_;
  ConnectionId next_id_ = 1;
  std::map<ConnectionId, Connection> connections_;
  // Tokens of the sessions that departed last. A process that was started earlier may still connect with one,
  // which is no fault of its own.
  std::deque<Token> departed_;
};

}  // namespace pinfeed
