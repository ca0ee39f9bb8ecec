// SPDX-License-Identifier: Apache-2.0
// The guard in front of gRPC: accepts a socket's connections and forwards the frames that clients may send.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "server/net/event_loop.h"
#include "server/net/guarded_connection.h"
#include "server/net/listener.h"
#include "server/net/peer.h"
#include "server/net/refusals.h"
#include "server/net/user_credit.h"

namespace pinfeed {

// Purpose: one thread for all connections of a socket: accepts, bounds what a user has open, moves bytes by
// the rules of GuardedConnection, delays users over their rate, closes and counts clients that break a rule.
// Owns: the listening socket, the connections, the thread. Borrows: the registry, the gRPC server and the
// refusals (outlive it). Threads: Start, StopAccepting and Stop from the owner. Errors: Create's; when no
// descriptor is left it pauses instead of spinning, and connections wait in the queue.
class FrameGuard final : private GuardedConnection::Owner {
 public:
  // Trainers hold a connection while they open their feed, tools one each.
  static constexpr size_t kMaxConnectionsPerUser = 512;
  static constexpr size_t kMaxCallsPerUser = 1024;

  // Takes over a non-blocking stream socket, on the guard's thread: the gRPC server's end of a connection.
  using Serve = std::function<void(UniqueFd)>;
  struct Options {
    std::string thread_name;
    size_t connections = kMaxConnectionsPerUser;  // of a user
    std::chrono::milliseconds begin_within{20'000};
    uint32_t cost = 40;  // of a connection, in units of UserCredit
    // Null: connections are served as they are.
    std::function<std::unique_ptr<ByteStream>(UniqueFd)> secure = nullptr;
    // Why this TLS peer may not call; empty: it may.
    std::function<std::string(const TlsPeer&)> denial = nullptr;
  };
  static Result<std::unique_ptr<FrameGuard>> Create(Listener listener, PeerRegistry& peers, Serve serve,
                                                    Refusals& refusals, Options options);
  ~FrameGuard();
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;

  void Start();
  // Takes no more connections; those there are go on. Idempotent.
  void StopAccepting();
  // Passes on what gRPC has said, and closes all. Precondition: the gRPC server has stopped. Idempotent.
  void Stop();

 private:
  using Clock = EventLoop::Clock;
  // The usage of one user: a local uid, or the names of a TLS certificate.
  struct Account {
    std::string who;
    UserCredit credit{Clock::now()};
    size_t connections = 0;
    size_t descriptors = 0;  // what they and gRPC have open for them
    size_t calls = 0;
    Clock::time_point next_warning_at;  // the next time that it waits
  };
  struct Side {
    EventLoop::WatchId watch = 0;  // 0: none
    uint32_t events = 0;
  };
  struct Entry {
    Peer peer;
    std::shared_ptr<Account> connection_account;  // whose connections and descriptors count
    std::shared_ptr<Account> account;             // whose credit and calls do
    std::unique_ptr<GuardedConnection> connection;
    Side client;
    Side server;
    size_t descriptors = 1;
    bool identified = false;      // TLS has said who it is
    bool fault_reported = false;  // its fault is counted
  };

  FrameGuard(std::unique_ptr<EventLoop> loop, Listener listener, PeerRegistry& peers, Serve serve,
             Refusals& refusals, Options options);

  void Accept();
  void Add(Listener::Connection accepted);
  std::shared_ptr<Account> AccountOf(const std::string& who);
  // Updates the watched events of a connection after any change, or removes the connection if it is over.
  void UpdateWatches(uint64_t id);
  // False when that cannot be watched.
  bool SetWatch(Side& side, int fd, uint32_t events, const std::function<void(uint32_t)>& on_events);
  void OnClient(uint64_t id, uint32_t events);
  void OnServer(uint64_t id, uint32_t events);
  void Identify(Entry& entry);
  void ReportFault(Entry& entry);
  void GrantCredit();
  void ScheduleGrants();
  void Sweep();
  void RemoveConnection(uint64_t id);

  bool RequestCredit(uint64_t id, uint32_t cost) override;
  UniqueFd ConnectToServer(uint64_t id) override;
  std::string DenialReason(uint64_t id) override;
  void CountDenial(const std::string& why) override;
  std::string AdmitCall(uint64_t id, size_t of_connection) override;
  void ReleaseCall(uint64_t id) override;

  const std::unique_ptr<EventLoop> loop_;
  Listener listener_;
  PeerRegistry& peers_;
  const Serve serve_;
  Refusals& refusals_;
  const Options options_;
  bool stopped_ = false;  // owner only
  // The loop's thread only.
  EventLoop::WatchId listening_ = 0;
  bool accepts_ = true;
  bool grants_scheduled_ = false;
  uint64_t next_id_ = 1;
  size_t ended_ = 0;  // connections, since their memory was given back
  std::unordered_map<uint64_t, Entry> entries_;
  std::map<std::string, std::shared_ptr<Account>> accounts_;
};

}  // namespace pinfeed
