// SPDX-License-Identifier: Apache-2.0
// One client's connection, between its socket and gRPC. In: bytes from both sides. Out: the bytes that pass
// ConnectionCalls, at the rate that the user's credit allows (ConnectionCredit).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/net/byte_stream.h"
#include "server/net/client_bytes.h"
#include "server/net/connection_calls.h"
#include "server/net/connection_credit.h"
#include "server/net/connection_owner.h"

namespace pinfeed {

// Purpose: forwards allowed bytes through one fixed buffer each way. It does not read from a side while the
// other side's buffer is full. It connects to gRPC once the client's preface and SETTINGS have arrived. Owns:
// the client's stream and its end of the socket pair to gRPC. Borrows: the owner. Threads: one. Errors: a
// client's fault ends the connection; fault() describes it.
class GuardedConnection {
 public:
  using Clock = std::chrono::steady_clock;

  // What to watch a side for.
  struct Wait {
    int fd = -1;          // -1: do not watch it
    uint32_t events = 0;  // of epoll; 0 means hang-up only
  };

  GuardedConnection(ConnectionOwner& owner, std::unique_ptr<ByteStream> client, uint32_t cost,
                    Clock::time_point begin_by)
      : owner_(owner), client_(std::move(client)), end_by_(begin_by), credit_(owner, cost), calls_(owner) {}
  GuardedConnection(const GuardedConnection&) = delete;
  GuardedConnection& operator=(const GuardedConnection&) = delete;

  // Forwards as many bytes as possible.
  void Pump();
  void OnCreditGranted(uint32_t credit);
  // Closes the client's side and shuts down gRPC's. Drops whatever gRPC still sends.
  void HangUp();
  // gRPC has closed its end. What it sent before is still forwarded.
  void OnServerGone();
  Wait client_wait() const;
  Wait server_wait() const;
  const TlsPeer* tls_peer() const { return client_ == nullptr ? nullptr : client_->peer(); }
  // Closes the streams that are no longer used. Precondition: they are no longer watched.
  void CloseDone() { done_.clear(); }
  // Whether both sides are closed.
  bool over() const { return client_ == nullptr && server_ == nullptr; }
  bool late(Clock::time_point now) const { return client_ != nullptr && now > end_by_; }
  bool begun() const { return begun_; }
  // The rule that the client broke; empty: none.
  const std::string& fault() const { return fault_; }
  // Why the TLS handshake failed; empty: it did not.
  const std::string& stream_fault() const { return stream_fault_; }

 private:
  void FromServer();
  void FromClient();
  // Returns false if nothing more can be forwarded now.
  bool ClearWhatMayPass();
  void OpenCall();
  void Begin();
  void Deny(const std::string& why);
  void Refuse(std::string fault);
  void FlushToClient();
  void CloseServer();
  void Linger();
  void DiscardFromClient();

  ConnectionOwner& owner_;
  std::unique_ptr<ByteStream> client_;             // null: closed
  std::unique_ptr<ByteStream> server_;             // null: not connected yet, or closed
  std::vector<std::unique_ptr<ByteStream>> done_;  // closed by CloseDone
  Clock::time_point end_by_;
  bool begun_ = false;                 // connected to gRPC, or denied
  std::optional<std::string> denial_;  // why calls are denied
  bool server_gone_ = false;
  size_t discard_budget_ = 0;  // above 0: lingering, see Linger

  ConnectionCredit credit_;
  ConnectionCalls calls_;
  ClientBytes from_client_;
  std::string to_client_;  // at most one chunk and a few of the guard's frames
  std::string fault_;
  std::string stream_fault_;
};

}  // namespace pinfeed
