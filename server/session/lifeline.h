// SPDX-License-Identifier: Apache-2.0
// Serves the lifelines of all sessions on one thread. In: connections, frames, doorbells, hang-ups, process
// ends. Out: sessions that are attached, left, orphaned or ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/os/foreign_fds.h"
#include "server/net/event_loop.h"
#include "server/net/listener.h"
#include "server/net/refusals.h"
#include "server/session/batcher_connections.h"
#include "server/session/decode_links.h"
#include "server/session/lifeline_frame.h"
#include "server/session/producer_connections.h"
#include "server/session/session_table.h"
#include "server/session/silent_lifelines.h"

namespace pinfeed {

// Purpose: decides when sessions attach and end. Owns: the listening socket, the connections, a pidfd for
// each attached process. Borrows: the sessions and refusals (outlive it). Threads: Expect, Abandon and Evict
// from any thread; Start and Stop from the owner; the rest on the loop's thread. It never blocks, whatever a
// client does: it reads no shared descriptor and waits for no worker. Errors: a client's fault ends its
// connection and is counted. Invariants: 1. a session ends when its client says bye, its process ends, or no
// client connects in time;
// 2. a hang-up alone frees no memory that a living process may have mapped; 3. connections without a hello
// are at most kMaxSilentPerUser per user, and at most a quarter of the descriptors in total.
class LifelineServer {
 public:
  static constexpr size_t kMaxSilentPerUser = 128;

  static Result<std::unique_ptr<LifelineServer>> Create(Listener listener,
                                                        std::chrono::milliseconds hello_timeout,
                                                        SessionTable& sessions, Refusals& refusals);
  ~LifelineServer();

  Status Start();
  // Closes every connection; the sessions stay in their table. Idempotent.
  void Stop();

  // Starts the time limit, `hello_timeout`, for the session's client to connect.
  void Expect(const std::shared_ptr<Session>& session);
  // Ends a session whose client does not get the answer to the call that opened it.
  void Abandon(const std::shared_ptr<Session>& session);

  // Ends a session; its trainer gets `error` in place of the next batch. If the session holds batches that it
  // shares with its group, it ends with its client's bye, with its process, or with an eviction after they
  // are released. `done` gets their number, or kNotFound if there is no such session, and is called on the
  // loop's thread.
  void Evict(uint64_t session_id, const Status& error, std::function<void(const Result<size_t>&)> done);

  const std::string& path() const { return listener_.path(); }
  // The processes that submit requests to batchers, or answer them.
  BatcherConnections& batchers() { return batchers_; }

 private:
  using ConnectionId = uint64_t;
  // Before its hello, a connection has no session. For an orphaned session, the descriptor is closed.
  struct Connection {
    Peer peer;
    UniqueConnection fd;
    UniqueFd pidfd;
    bool has_left = false;             // the client has sent kLeave
    std::shared_ptr<Session> session;  // destroyed before the socket: see EndSession
    EventLoop::Watched watched_fd;
    EventLoop::Watched watched_pidfd;
    EventLoop::Watched watched_doorbell;
  };
  // A session that was evicted before its client connected: what to tell that client.
  struct Evicted {
    Token token;
    Peer peer;
    Status error;
  };

  LifelineServer(Listener listener, std::unique_ptr<EventLoop> loop, std::chrono::milliseconds hello_timeout,
                 SessionTable& sessions, Refusals& refusals);
  void OnListener();
  void AddConnection(Listener::Connection accepted);
  void OnReadable(ConnectionId id);
  void OnFrame(ConnectionId id, Connection& connection, const LifelineFrame& frame);
  void OnHello(ConnectionId id, Connection& connection, const LifelineFrame& frame);
  // Its first frame said that it is a producer's, or a member's of a batcher.
  template <typename Connections>
  void HandOver(ConnectionId id, Connection& connection, const LifelineFrame& frame, Connections& to);
  Status AttachSession(ConnectionId id, Connection& connection, const LifelineFrame& frame);
  Status WatchSession(ConnectionId id, Connection& connection);
  // Called periodically for each session of a queue: see Feed::ReadReleases.
  void PollReleases(ConnectionId id);
  void OnHangUp(ConnectionId id, Connection& connection);
  void Refuse(ConnectionId id, Refusal refusal, const Status& error);
  void EndSession(ConnectionId id, const Departure& departure);
  // From the feed, with its producers.
  SessionTable::Departed Depart(const std::shared_ptr<Session>& session, const Departure& departure);
  Result<size_t> EvictNow(uint64_t session_id, const Status& error);

  Listener listener_;
  const std::unique_ptr<EventLoop> loop_;
  const std::chrono::milliseconds hello_timeout_;
  SessionTable& sessions_;
  Refusals& refusals_;
  // Used by the loop's thread only (or after Stop).
  EventLoop::Watched watched_listener_;
  ConnectionId next_id_ = 1;
  std::map<ConnectionId, Connection> connections_;
  ConnectionRoom room_;
  ProducerConnections producers_;
  BatcherConnections batchers_;
  SilentLifelines silent_;  // the connections without a hello
  DecodeLinks decode_links_;
  std::deque<Evicted> evicted_;  // the oldest first, each for `hello_timeout`
};

}  // namespace pinfeed
