// SPDX-License-Identifier: Apache-2.0
// The guard in front of gRPC: accepts connections and forwards only the frames that clients may send.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "server/net/event_loop.h"
#include "server/net/guard_client.h"
#include "server/net/guarded_connection.h"
#include "server/net/listener.h"
#include "server/net/peer.h"
#include "server/net/refusals.h"

namespace pinfeed {

// Purpose: serves all connections of one socket on one thread. Accepts them, watches their descriptors,
// grants credit to those that wait, and closes those that are late. Owns: the listening socket, the clients,
// the thread. Borrows: the registry, the gRPC server and the refusals (outlive it). Threads: Start,
// StopAccepting, HangUpAt and Stop from the owner. Errors: Create's. Without a free descriptor it pauses
// accepting, and new connections wait in the socket's queue.
class FrameGuard {
 public:
  // A trainer holds a connection while it opens a feed; a tool holds one.
  static constexpr size_t kMaxConnectionsPerUser = 512;

  // Takes ownership of gRPC's end of a connection, a non-blocking stream socket. Called on the guard's
  // thread.
  using Serve = std::function<void(UniqueFd)>;
  struct Options {
    std::string thread_name;
    size_t connections = kMaxConnectionsPerUser;  // per user
    std::chrono::milliseconds begin_within{20'000};
    uint32_t cost = 40;  // per connection, in units of UserCredit
    // Wraps a socket in TLS. Null: connections are plain.
    std::function<std::unique_ptr<ByteStream>(UniqueFd)> secure = nullptr;
    // Returns why this TLS peer may not call; empty if it may.
    std::function<std::string(const TlsPeer&)> denial = nullptr;
  };
  static Result<std::unique_ptr<FrameGuard>> Create(Listener listener, PeerRegistry& peers, Serve serve,
                                                    Refusals& refusals, Options options);
  ~FrameGuard();

  void Start();
  // Accepts no more connections; open ones continue. Idempotent.
  void StopAccepting();
  // Closes the connections that are still open then. A gRPC server that stops waits for clients that do not
  // read.
  void HangUpAt(std::chrono::steady_clock::time_point time);
  // Forwards what gRPC has sent and closes all connections. Precondition: the gRPC server has stopped.
  // Idempotent.
  void Stop();

 private:
  using Clock = EventLoop::Clock;
  struct Side {
    EventLoop::Watched watched;
    uint32_t events = 0;
  };
  // A client, and its connection's two sides as they are watched.
  struct Watched {
    std::unique_ptr<GuardClient> client;
    Side client_side = {};
    Side server_side = {};
  };

  FrameGuard(std::unique_ptr<EventLoop> loop, Listener listener, PeerRegistry& peers, Serve serve,
             Refusals& refusals, Options options);

  void Accept();
  void Add(Listener::Connection accepted);
  // Watches the events a connection waits for now, or removes the connection if it is over. Call after any
  // change.
  void UpdateWatches(uint64_t id);
  // Returns false if the descriptor cannot be watched.
  bool SetWatch(Side& side, GuardedConnection::Wait wait, const std::function<void(uint32_t)>& on_events);
  void OnClient(uint64_t id, uint32_t events);
  void OnServer(uint64_t id, uint32_t events);
  void GrantCredit();
  void ScheduleGrants();
  void Sweep();
  void RemoveClient(uint64_t id);

  const std::unique_ptr<EventLoop> loop_;
  Listener listener_;
  const Options options_;
  bool stopped_ = false;  // used by the owner only
  // Used by the loop's thread only.
  EventLoop::Watched listening_;
  bool accepts_ = true;
  bool grants_scheduled_ = false;
  uint64_t next_id_ = 1;
  size_t ended_ = 0;  // connections ended since the last malloc_trim
  GuardClient::Services services_;
  std::unordered_map<uint64_t, Watched> clients_;
};

}  // namespace pinfeed
