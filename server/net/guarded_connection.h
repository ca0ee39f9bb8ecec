// SPDX-License-Identifier: Apache-2.0
// One client's connection, between its socket and gRPC. In: bytes from both sides. Out: the bytes that pass
// ClientFrameChecker, at the rate that the user's credit allows (UserCredit).
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

// Purpose: forwards allowed bytes through one fixed buffer each way. It does not read from a side while the
// other side's buffer is full. It connects to gRPC once the client's preface and SETTINGS have arrived. Owns:
// the client's stream and its end of the socket pair to gRPC. Borrows: the owner. Threads: one. Errors: a
// client's fault ends the connection; fault() describes it.
class GuardedConnection {
 public:
  using Clock = std::chrono::steady_clock;

  // The services that a connection needs from its owner.
  class Owner {
   public:
    // Returns false if the connection was queued; OnCreditGranted is then called later.
    virtual bool RequestCredit(uint64_t id, uint32_t cost) = 0;
    // Connects to gRPC and returns the guard's end of the socket pair; null on failure.
    virtual UniqueFd ConnectToServer(uint64_t id) = 0;
    // Returns why the client may not call; empty if it may. Called once TLS has identified the client, and
    // for each call.
    virtual std::string DenialReason(uint64_t id) = 0;
    // Counts a call that was answered with this denial.
    virtual void CountDenial(const std::string& why) = 0;
    // Counts a new call, the `of_connection`th open one of its connection. Returns why it is refused; empty
    // if it is allowed.
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

  // Forwards as many bytes as possible.
  void Pump();
  void OnCreditGranted(uint32_t credit);
  // Closes the client's side and shuts down gRPC's. Drops whatever gRPC still sends.
  void HangUp();
  // gRPC has closed its end. What it sent before is still forwarded.
  void OnServerGone();
  // The epoll events to watch for. 0 means hang-up only.
  uint32_t client_events() const;
  uint32_t server_events() const;
  int client_fd() const { return client_ == nullptr ? -1 : client_->fd(); }
  int server_fd() const { return server_ ? server_->fd() : -1; }
  const TlsPeer* tls_peer() const { return client_ == nullptr ? nullptr : client_->peer(); }
  bool server_gone() const { return server_gone_; }
  // Closes the streams that are no longer used. Precondition: they are no longer watched.
  void CloseDone() {
    done_client_.reset();
    done_server_.reset();
  }
  // Whether both sides are closed.
  bool over() const { return client_ == nullptr && server_ == nullptr; }
  bool late(Clock::time_point now) const { return client_ != nullptr && now > end_by_; }
  bool begun() const { return begun_; }
  // The rule that the client broke; empty: none.
  const std::string& fault() const { return fault_; }
  // Why the TLS handshake failed; empty: it did not.
  const std::string& stream_fault() const { return stream_fault_; }

 private:
  static constexpr size_t kChunk = 16384;
  static constexpr size_t kMaxDiscarded = 65536;
  static constexpr uint32_t kInitialCredit = 64;  // included in the cost of a connection

  bool Pay(uint32_t cost);
  void FromServer();
  void FromClient();
  // Returns false if nothing more can be forwarded now.
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
  std::unique_ptr<ByteStream> client_;    // null: closed
  std::unique_ptr<SocketStream> server_;  // null: not connected yet, or closed
  std::unique_ptr<ByteStream> done_client_;
  std::unique_ptr<SocketStream> done_server_;
  const uint32_t cost_;  // of opening the connection
  Clock::time_point end_by_;
  bool paid_ = false;
  bool waiting_for_credit_ = false;  // queued in UserCredit
  uint32_t credit_ = 0;              // left of the last grant
  bool begun_ = false;               // connected to gRPC, or denied
  bool denied_ = false;
  std::string denial_;
  bool server_gone_ = false;
  bool server_full_ = false;
  size_t discard_budget_ = 0;  // above 0: lingering, see Linger

  ClientFrameChecker frames_;
  ClientFrameChecker::Segment segment_;  // checked, but not paid yet
  ServerFrameTracker server_frames_;
  std::string from_client_;  // at most kChunk
  size_t cleared_ = 0;       // bytes of it that may be forwarded
  std::string to_client_;    // at most kChunk and a few of the guard's frames
  std::string fault_;
  std::string stream_fault_;
};

}  // namespace pinfeed
