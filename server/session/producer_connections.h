// SPDX-License-Identifier: Apache-2.0
// Serves the processes that fill batches, on the thread of the lifelines. In: invitations, connections,
// frames, process ends. Out: producers of the sessions' feeds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/base/unique_handle.h"
#include "common/os/foreign_fds.h"
#include "server/loading/producer_group.h"
#include "server/net/descriptor_room.h"
#include "server/net/event_loop.h"
#include "server/net/peer.h"
#include "server/net/refusals.h"
#include "server/session/session.h"
#include "server/session/token.h"

namespace pinfeed {

// Purpose: admits producers by invitation, and passes what they say to their group. Owns: the invitations,
// the connections, a pidfd for each. Borrows: the loop, the refusals and the room (outlive it). Threads:
// Invite from any; the rest on the loop's thread, or after it has stopped. Nothing blocks. Errors: a
// producer's fault ends its connection and is counted. Invariants: 1. an invitation admits one process, of
// the session's user, while the session is attached; 2. a process that holds tasks is watched until it ends.
class ProducerConnections {
 public:
  ProducerConnections(EventLoop& loop, Refusals& refusals, ConnectionRoom& room)
      : loop_(loop), refusals_(refusals), room_(room) {}

  // `lane`: which batches the producer fills. kFailedPrecondition if the daemon fills the session's batches
  // itself; otherwise the errors of ProducerGroup::CheckLane and CheckRoom.
  Result<Token> Invite(const std::shared_ptr<Session>& session, uint32_t lane) PF_EXCLUDES(mutex_);
  // Takes over a connection whose first frame had this token. On an error `fd` is left to the caller, who
  // refuses the producer.
  Status Admit(const Peer& peer, const uint8_t (&token)[kTokenBytes], UniqueConnection& fd);
  // The session has departed from its feed: producers that it invited get no more tasks there.
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
  struct Invitation {
    Token token;
    std::weak_ptr<Session> session;
    uint64_t session_id = 0;
    uid_t uid = 0;  // of the session's user
    uint32_t lane = 0;
  };
  struct Redeemed {
    std::shared_ptr<Session> session;
    uint32_t lane = 0;
  };

  // Returns what the invitation is for. It is used up. kUnavailable if its session has ended, which is no
  // fault of the producer; kUnauthenticated if there is none.
  Result<Redeemed> Redeem(const uint8_t (&token)[kTokenBytes], const Peer& peer) PF_EXCLUDES(mutex_);
  Status Watch(ConnectionId id, Connection& connection);
  void OnReadable(ConnectionId id);
  // Answers a producer that asks for memory of its own. Returns an error if the request is wrong.
  Status OnMemory(Connection& connection, const MemoryRequest& request);
  void OnHangUp(ConnectionId id);
  // Called periodically for each producer: see ProducerGroup::ReplaceLate.
  void CheckLate(ConnectionId id);
  void Forget(ConnectionId id);

  EventLoop& loop_;
  Refusals& refusals_;
  ConnectionRoom& room_;
  ConnectionId next_id_ = 1;
  std::map<ConnectionId, Connection> connections_;
  Mutex mutex_;
  std::vector<Invitation> invitations_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
