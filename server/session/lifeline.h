// SPDX-License-Identifier: Apache-2.0
// The lifelines of all sessions, on one thread. In: connections, frames, doorbells, hang-ups, process ends.
// Out: sessions attached, left, orphaned, ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "server/net/event_loop.h"
#include "server/net/listener.h"
#include "server/net/refusals.h"
#include "server/session/lifeline_frame.h"
#include "server/session/session_table.h"
#include "server/session/silent_lifelines.h"

namespace pinfeed {

// Purpose: the one place where a session's life is decided. Owns: the listening socket, the connections, a
// pidfd for each attached process. Borrows: the sessions and refusals (outlive it). Threads: Expect,
// Abandon and Evict from any thread; Start and Stop from the owner; the rest is the loop's. Nothing in it
// blocks, whatever a client does: no read of a shared descriptor, no wait for a worker. Errors: a client's
// fault ends its connection and is counted. Invariants: 1. a session ends when its client says farewell, or
// when its process has ended, or when nobody came for it in time; 2. a hang-up alone takes back nothing that
// a living process may have mapped; 3. of connections without a hello there are kMaxSilentPerUser of a user
// at most, and a quarter of the descriptors of all users.
class LifelineServer {
 public:
  static constexpr size_t kMaxSilentPerUser = 128;

  static Result<std::unique_ptr<LifelineServer>> Create(Listener listener,
                                                        std::chrono::milliseconds hello_timeout,
                                                        SessionTable& sessions, Refusals& refusals);
  ~LifelineServer();
  LifelineServer(const LifelineServer&) = delete;
  LifelineServer& operator=(const LifelineServer&) = delete;

  Status Start();
  // Closes every connection; the sessions stay in their table. Idempotent.
  void Stop();

  // The session's client has `hello_timeout` from now on to connect.
  void Expect(const std::shared_ptr<Session>& session);
  // Its client will not come: the call that opened it was cancelled.
  void Abandon(const std::shared_ptr<Session>& session);

  // The trainer gets `error` instead of a next batch, and the session ends: at once, or, while it holds
  // batches that it shares with others (`done` gets how many), with its process at the latest. kNotFound when
  // there is none. `done` is called from the loop.
  void Evict(uint64_t session_id, const Status& error, std::function<void(const Result<size_t>&)> done);

  const std::string& path() const { return listener_.path(); }

 private:
  using ConnectionId = uint64_t;
  // A connection that has not said hello has no session; one of an orphan has no descriptor any more.
  struct Connection {
    Peer peer;
    UniqueFd fd;
    UniqueFd pidfd;
    EventLoop::WatchId fd_watch = 0;
    EventLoop::WatchId pidfd_watch = 0;
    EventLoop::WatchId doorbell_watch = 0;
    bool has_left = false;             // said so
    std::shared_ptr<Session> session;  // last: gone before the socket is closed, see EndSession
  };

  LifelineServer(Listener listener, std::unique_ptr<EventLoop> loop, std::chrono::milliseconds hello_timeout,
                 SessionTable& sessions, Refusals& refusals);
  void OnListener();
  void AddConnection(Listener::Connection accepted);
  void OnReadable(ConnectionId id);
  void OnFrame(ConnectionId id, Connection& connection, const LifelineFrame& frame);
  void OnHello(ConnectionId id, Connection& connection, const LifelineFrame& frame);
  Status AttachSession(ConnectionId id, Connection& connection, const LifelineFrame& frame);
  Status WatchSession(ConnectionId id, Connection& connection);
  // Again and again while the session is served: see Feed::ReadReleases.
  void PollQueue(ConnectionId id);
  void OnHangUp(ConnectionId id, Connection& connection);
  void Refuse(ConnectionId id, Refusal refusal, const Status& error);
  void EndSession(ConnectionId id, const Departure& departure);
  Result<size_t> EvictNow(uint64_t session_id, const Status& error);
  void Unwatch(EventLoop::WatchId& watch);
  void CloseSocket(Connection& connection);

  Listener listener_;
  const std::unique_ptr<EventLoop> loop_;
  const std::chrono::milliseconds hello_timeout_;
  SessionTable& sessions_;
  Refusals& refusals_;
  // The loop's thread only (or after Stop).
  EventLoop::WatchId listener_watch_ = 0;
  ConnectionId next_id_ = 1;
  std::map<ConnectionId, Connection> connections_;
  SilentLifelines silent_;  // of these, the ones without a hello
};

}  // namespace pinfeed
