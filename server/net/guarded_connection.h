// SPDX-License-Identifier: Apache-2.0
// One client's connection, between its socket and gRPC. In: bytes of both sides. Out: those that keep the
// rules (ClientFrameChecker), as far as its user's credit goes (UserCredit).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/unique_handle.h"
#include "server/net/byte_stream.h"
#include "server/net/client_frames.h"
#include "server/net/socket_stream.h"

namespace pinfeed {

// Purpose: forwards allowed bytes each way through one buffer of fixed size. A side that does not read is
// not read from. gRPC is connected after the client's preface and SETTINGS. Owns: the client's stream,
// and this end of the socket pair whose other end is gRPC's. Borrows: the owner. Threads: one. Errors: what
// the client does wrong ends the connection, and fault() says it.
class GuardedConnection {
 public:
  using Clock = std::chrono::steady_clock;

  // What the connection needs from its owner.
  class Owner {
   public:
    // False: the connection is queued, and OnCreditGranted is called later.
    virtual bool RequestCredit(uint64_t id, uint32_t cost) = 0;
    // Has gRPC serve it. Gives the end of the pair that is not gRPC's; nothing when that cannot be.
    virtual UniqueFd ConnectToServer(uint64_t id) = 0;
    // Why the client may not call; empty: it may. Called when TLS has identified it, and for each call.
    virtual std::string DenialReason(uint64_t id) = 0;
    // A call was answered so.
    virtual void CountDenial(const std::string& why) = 0;
    // Counts a new call, the `of_connection`th open one of the connection. Why it is refused; empty: allowed.
    virtual std::string AdmitCall(uint64_t id, size_t of_connection) = 0;
    virtual void ReleaseCall(uint64_t id) = 0;

   protected:
    ~Owner() = default;
  };

  GuardedConnection(uint64_t id, Owner& host, std::unique_ptr<ByteStream> client, uint32_t cost,
                    Clock::time_point begin_by)
      : id_(id), owner_(host), client_(std::move(client)), cost_(cost), end_by_(begin_by) {}
  ~GuardedConnection();
  GuardedConnection(const GuardedConnection&) = delete;
  GuardedConnection& operator=(const GuardedConnection&) = delete;

  // Moves what can be moved.
  void Pump();
  void OnCreditGranted(uint32_t credit);
  // Closes the client's side, and shuts down gRPC's; whatever gRPC still sends is dropped.
  void HangUp();
  // gRPC has closed its end; what it said before is still passed on.
  void OnServerGone();
  // For the events that it waits for; 0: none but hanging up.
  uint32_t client_events() const;
  uint32_t server_events() const;
  int client_fd() const { return client_ == nullptr ? -1 : client_->fd(); }
  int server_fd() const { return server_ ? server_->fd() : -1; }
  const TlsPeer* tls_peer() const { return client_ == nullptr ? nullptr : client_->peer(); }
  bool server_gone() const { return server_gone_; }
  // Closes what it has done with. Precondition: nobody watches that any more.
  void CloseDone() {
    done_client_.reset();
    done_server_.reset();
  }
  // Nothing is left of it.
  bool over() const { return client_ == nullptr && server_ == nullptr; }
  bool late(Clock::time_point now) const { return client_ != nullptr && now > end_by_; }
  bool begun() const { return begun_; }
  // What the client did; empty: nothing wrong.
  const std::string& fault() const { return fault_; }
  // Of TLS's handshake.
  const std::string& stream_fault() const { return stream_fault_; }

 private:
  static constexpr size_t kChunk = 16384;
  static constexpr size_t kMaxDiscarded = 65536;
  static constexpr uint32_t kInitialCredit = 64;  // units that the cost of a connection has in it

  bool Pay(uint32_t cost);
  void FromServer();
  void FromClient();
  // False when more cannot pass now.
  bool ClearWhatMayPass();
  void OpenCall();
  void Begin();
  void Deny(const std::string& why);
  void Refuse(std::string fault);
  void FlushToClient();
  void Linger();
  void DiscardFromClient();
  void ForgetCalls();

  const uint64_t id_;
  Owner& owner_;
  std::unique_ptr<ByteStream> client_;    // null: gone
  std::unique_ptr<SocketStream> server_;  // null: not yet, or gone
  std::unique_ptr<ByteStream> done_client_;
  std::unique_ptr<SocketStream> done_server_;
  const uint32_t cost_;  // of the connection itself
  Clock::time_point end_by_;
  bool paid_ = false;
  bool waiting_for_credit_ = false;  // for its turn
  uint32_t credit_ = 0;              // what is left of it
  bool begun_ = false;               // gRPC has been given it, or it is denied
  bool denied_ = false;
  std::string denial_;
  bool server_gone_ = false;
  bool server_full_ = false;
  size_t discard_budget_ = 0;  // more than 0: lingers

  ClientFrameChecker frames_;
  ClientFrameChecker::Segment segment_;  // judged, but not paid yet
  ServerFrameTracker server_frames_;
  std::string from_client_;  // at most kChunk
  size_t cleared_ = 0;       // of it: may pass
  std::string to_client_;    // at most kChunk and some frames of our own
  std::string fault_;
  std::string stream_fault_;
};

}  // namespace pinfeed
