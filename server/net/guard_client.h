// SPDX-License-Identifier: Apache-2.0
// One client of a guard: who it is, what its user may still use, and its connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/unique_handle.h"
#include "server/net/byte_stream.h"
#include "server/net/connection_owner.h"
#include "server/net/guarded_connection.h"
#include "server/net/peer.h"
#include "server/net/refusals.h"
#include "server/net/user_accounts.h"

namespace pinfeed {

// Purpose: identifies a client, charges its user's account with the connection, its descriptors, credit and
// calls, and counts what it is refused. Owns: the connection. Borrows: the services, which outlive it.
// Threads: the guard's. Errors: counted as refusals. Invariant: the destructor takes back every charge but
// credit.
class GuardClient final : private ConnectionOwner {
 public:
  using Clock = GuardedConnection::Clock;
  static constexpr size_t kMaxCallsPerUser = 1024;
  // A request has some KiB, and few calls stay open for long. gRPC keeps about twice as much.
  static constexpr uint64_t kMaxMessageBytesPerUser = uint64_t{4} << 20;

  // What the clients of one guard share.
  struct Services {
    PeerRegistry& peers;
    Refusals& refusals;
    // Takes ownership of gRPC's end of a connection, a non-blocking stream socket.
    std::function<void(UniqueFd)> serve;
    // Returns why this TLS peer may not call; empty if it may. Null: every peer may.
    std::function<std::string(const TlsPeer&)> denial;
    // Is to grant credit soon, until no connection waits for any.
    std::function<void()> grant_soon;
    UserAccounts accounts = {};
  };

  // The account of a client that has just connected, if it has room for one of at most `max_connections`.
  // Otherwise counts the refusal and returns null.
  static std::shared_ptr<UserAccount> Admit(Services& services, const Peer& peer, size_t max_connections);
  // `account` comes from Admit. `cost` is charged for the connection, which must begin by `begin_by`.
  GuardClient(uint64_t id, Services& services, const Peer& peer, std::shared_ptr<UserAccount> account,
              std::unique_ptr<ByteStream> stream, uint32_t cost, Clock::time_point begin_by);
  ~GuardClient();
  GuardClient(const GuardClient&) = delete;
  GuardClient& operator=(const GuardClient&) = delete;

  GuardedConnection& connection() { return connection_; }
  // Counts the rule that the client broke, if any, once.
  void ReportFault();
  // Ends a connection that is late (GuardedConnection::late).
  void EndLate();

 private:
  void Identify();
  std::string who() const { return identified_ ? account_->who : Describe(peer_); }

  bool RequestCredit(uint32_t cost) override;
  UniqueConnection ConnectToServer() override;
  std::string DenialReason() override;
  void CountDenial(const std::string& why) override;
  std::string AdmitCall(size_t of_connection) override;
  std::string AdmitMessage(uint64_t bytes) override;
  void ReleaseCall(uint64_t message_bytes) override;
  std::string RefuseCalls(const std::string& what);

  const uint64_t id_;
  Services& services_;
  const Peer peer_;
  const std::shared_ptr<UserAccount> connection_account_;  // charged with the connection and its descriptors
  std::shared_ptr<UserAccount> account_;                   // charged with credit and calls
  size_t descriptors_ = 1;
  bool identified_ = false;       // the TLS peer is known
  bool fault_reported_ = false;   // the fault was counted as a refusal
  GuardedConnection connection_;  // destroyed first; releases its calls
};

}  // namespace pinfeed
