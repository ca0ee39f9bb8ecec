// SPDX-License-Identifier: Apache-2.0
// The guard in front of gRPC: accepts connections and forwards only the frames that clients may send.
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

// Purpose: serves all connections of one socket on one thread. Accepts them, limits what each user has open,
// moves bytes by the rules of GuardedConnection, slows down users over their rate, and closes and counts
// clients that break a rule. Owns: the listening socket, the connections, the thread. Borrows: the registry,
// the gRPC server and the refusals (outlive it). Threads: Start, StopAccepting and Stop from the owner.
// Errors: Create's. Without a free descriptor it pauses accepting, and new connections wait in the socket's
// queue.
class FrameGuard final : private GuardedConnection::Owner {
 public:
  // A trainer holds a connection while it opens a feed; a tool holds one.
  static constexpr size_t kMaxConnectionsPerUser = 512;
  static constexpr size_t kMaxCallsPerUser = 1024;

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
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;

  void Start();
  // Accepts no more connections; open ones continue. Idempotent.
  void StopAccepting();
  // Forwards what gRPC has sent and closes all connections. Precondition: the gRPC server has stopped.
  // Idempotent.
  void Stop();

 private:
  using Clock = EventLoop::Clock;
  // The usage of one user, who is a local uid or the names in a TLS certificate.
  struct Account {
    std::string who;
    UserCredit credit{Clock::now()};
    size_t connections = 0;
    size_t descriptors = 0;  // used by these connections, here and in gRPC
    size_t calls = 0;
    Clock::time_point next_warning_at;  // no earlier warning that the user is slowed down
  };
  struct Side {
    EventLoop::WatchId watch = 0;  // 0: not watched
    uint32_t events = 0;
  };
  struct Entry {
    Peer peer;
    std::shared_ptr<Account> connection_account;  // charged with the connection and its descriptors
    std::shared_ptr<Account> account;             // charged with credit and calls
    std::unique_ptr<GuardedConnection> connection;
    Side client;
    Side server;
    size_t descriptors = 1;
    bool identified = false;      // the TLS peer is known
    bool fault_reported = false;  // the fault was counted as a refusal
  };

  FrameGuard(std::unique_ptr<EventLoop> loop, Listener listener, PeerRegistry& peers, Serve serve,
             Refusals& refusals, Options options);

  void Accept();
  void Add(Listener::Connection accepted);
  std::shared_ptr<Account> AccountOf(const std::string& who);
  // Watches the events a connection waits for now, or removes the connection if it is over. Call after any
  // change.
  void UpdateWatches(uint64_t id);
  // Returns false if the descriptor cannot be watched.
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
  bool stopped_ = false;  // used by the owner only
  // Used by the loop's thread only.
  EventLoop::WatchId listening_ = 0;
  bool accepts_ = true;
  bool grants_scheduled_ = false;
  uint64_t next_id_ = 1;
  size_t ended_ = 0;  // connections ended since the last malloc_trim
  std::unordered_map<uint64_t, Entry> entries_;
  std::map<std::string, std::shared_ptr<Account>> accounts_;
};

}  // namespace pinfeed
