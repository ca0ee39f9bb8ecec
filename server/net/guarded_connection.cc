// SPDX-License-Identifier: Apache-2.0
#include "server/net/guarded_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "server/net/guard_frames.h"

namespace pinfeed {
namespace {

constexpr int kMaxRounds = 4;  // per call, so that other connections are served
constexpr std::chrono::seconds kDeniedFor(30);
constexpr std::chrono::seconds kFlushFor(10);
constexpr std::chrono::seconds kLingerFor(2);

}  // namespace

GuardedConnection::~GuardedConnection() {
  ForgetCalls();
}

bool GuardedConnection::Pay(uint32_t cost) {
  if (waiting_for_credit_) return false;
  if (credit_ >= cost) {
    credit_ -= cost;
    return true;
  }
  if (owner_.RequestCredit(id_, cost)) return true;
  waiting_for_credit_ = true;
  return false;
}

void GuardedConnection::OnCreditGranted(uint32_t credit) {
  waiting_for_credit_ = false;
  credit_ += credit;
  Pump();
}

void GuardedConnection::Pump() {
  if (client_ != nullptr && !paid_) {
    if (!Pay(cost_)) return;
    paid_ = true;
    credit_ += kInitialCredit;
  }
  FromServer();
  if (discard_budget_ > 0) {
    DiscardFromClient();
  } else if (client_ != nullptr) {
    FromClient();
  }
}

void GuardedConnection::FlushToClient() {
  while (client_ != nullptr && !to_client_.empty()) {
    const ssize_t moved = client_->Write(to_client_.data(), to_client_.size());
    if (moved == ByteStream::kWouldBlock) return;
    if (moved <= 0) {
      HangUp();
      return;
    }
    to_client_.erase(0, static_cast<size_t>(moved));
  }
}

void GuardedConnection::FromServer() {
  std::array<char, kChunk> chunk;
  for (int round = 0; round < kMaxRounds || server_gone_; ++round) {
    FlushToClient();
    if (!to_client_.empty() || server_ == nullptr) return;
    const ssize_t moved = server_->Read(chunk.data(), chunk.size());
    if (moved == ByteStream::kWouldBlock) return;
    if (moved <= 0) {
      done_server_ = std::move(server_);
      ForgetCalls();
      if (!denied_) HangUp();
      return;
    }
    const std::string_view bytes(chunk.data(), static_cast<size_t>(moved));
    for (const uint32_t call : server_frames_.Scan(bytes))
      if (frames_.EndCall(call)) owner_.ReleaseCall(id_);
    if (client_ != nullptr && !denied_) to_client_.append(bytes);
  }
}

bool GuardedConnection::ClearWhatMayPass() {
  while (true) {
    if (!begun_ && frames_.begun()) Begin();
    if (client_ == nullptr) return false;
    if (cleared_ == from_client_.size()) return true;
    if (segment_.bytes == 0) {
      const size_t open = frames_.open_calls().size();
      segment_ = frames_.Next(std::string_view(from_client_).substr(cleared_));
      if (!segment_.fault.empty()) {
        Refuse("sent " + segment_.fault);
        return false;
      }
      if (segment_.bytes == 0) return true;
      if (frames_.open_calls().size() < open) owner_.ReleaseCall(id_);
    }
    if (!Pay(segment_.cost)) return false;
    cleared_ += segment_.bytes;
    if (std::exchange(segment_, {}).opens_call) OpenCall();
  }
}

void GuardedConnection::OpenCall() {
  if (std::string fault = owner_.AdmitCall(id_, frames_.open_calls().size()); !fault.empty()) {
    Refuse(std::move(fault));
    return;
  }
  const std::string denial = denied_ ? denial_ : owner_.DenialReason(id_);
  if (denial.empty()) return;
  const uint32_t call = frames_.last_call();
  if (!denied_) Deny(denial);
  if (client_ == nullptr) return;
  owner_.CountDenial(denial_);
  to_client_ += PermissionDeniedResponse(call, denial_);
  if (frames_.EndCall(call)) owner_.ReleaseCall(id_);
}

// Disconnects gRPC. Cancels the open calls of this connection; each further call is answered with the denial.
void GuardedConnection::Deny(const std::string& why) {
  denied_ = true;
  denial_ = why;
  end_by_ = Clock::now() + kDeniedFor;
  if (server_ == nullptr) return;
  if (!server_frames_.between_frames()) {
    HangUp();  // a frame of our own cannot go inside another frame
    return;
  }
  for (const uint32_t call : frames_.open_calls())
    if (call != frames_.last_call()) to_client_ += CancelStream(call);
  ::shutdown(server_->fd(), SHUT_WR);
}

// Connects to gRPC, which allocates memory for each connection; so only once the client has sent valid
// SETTINGS.
void GuardedConnection::Begin() {
  begun_ = true;
  end_by_ = Clock::time_point::max();
  if (const std::string denial = owner_.DenialReason(id_); !denial.empty()) {
    Deny(denial);
    to_client_ += SettingsAndAck();
    return;
  }
  UniqueFd server = owner_.ConnectToServer(id_);
  if (!server) {
    HangUp();
    return;
  }
  server_ = std::make_unique<SocketStream>(std::move(server));
}

void GuardedConnection::FromClient() {
  std::array<char, kChunk> chunk;
  for (int round = 0;; ++round) {
    const bool all_cleared = ClearWhatMayPass();
    if (client_ == nullptr) return;
    if (denied_) {
      from_client_.erase(0, std::exchange(cleared_, 0));
      FlushToClient();
      if (client_ == nullptr) return;
    }
    server_full_ = false;
    while (server_ != nullptr && cleared_ > 0 && !server_full_) {
      const ssize_t moved = server_->Write(from_client_.data(), cleared_);
      server_full_ = moved <= 0;  // if broken, the next read reports it
      if (server_full_) break;
      from_client_.erase(0, static_cast<size_t>(moved));
      cleared_ -= static_cast<size_t>(moved);
    }
    if (server_full_ || !all_cleared) return;
    if (!to_client_.empty()) return;  // the client must read before it is read from
    if (round >= kMaxRounds && !client_->has_more()) return;
    const ssize_t moved = client_->Read(chunk.data(), kChunk - from_client_.size());
    if (moved == ByteStream::kWouldBlock) return;
    if (moved == ByteStream::kBroken) {
      stream_fault_ = client_->fault();
      stream_fault_.empty() ? HangUp() : Linger();
      return;
    }
    if (moved == 0) {  // also a half-closed socket, which gRPC's clients never cause
      HangUp();
      return;
    }
    from_client_.append(chunk.data(), static_cast<size_t>(moved));
  }
}

void GuardedConnection::Refuse(std::string fault) {
  fault_ = std::move(fault);
  if (client_ != nullptr && to_client_.empty() && server_frames_.between_frames()) {
    const std::string farewell = GoAwayEnhanceYourCalm(fault_);
    (void)client_->Write(farewell.data(), farewell.size());  // best effort: the log has the reason too
  }
  HangUp();
}

void GuardedConnection::OnServerGone() {
  server_gone_ = true;
  end_by_ = std::min(end_by_, Clock::now() + kFlushFor);
  Pump();
}

uint32_t GuardedConnection::client_events() const {
  const bool reads = paid_ && !waiting_for_credit_ && !server_full_ && to_client_.empty();
  const bool writes = !to_client_.empty() || client_->needs_to_write();
  // While the client is not read from, only EPOLLRDHUP shows that a TCP client is gone.
  return (reads ? EPOLLIN : EPOLLRDHUP) | (writes ? EPOLLOUT : 0U);
}

uint32_t GuardedConnection::server_events() const {
  return (to_client_.empty() ? EPOLLIN : 0U) | (server_full_ ? EPOLLOUT : 0U);
}

// Lets the client read the TLS alert and hang up first. Closing a TCP socket with unread bytes would discard
// what was sent last.
void GuardedConnection::Linger() {
  ::shutdown(client_->fd(), SHUT_WR);
  discard_budget_ = kMaxDiscarded;
  end_by_ = std::min(end_by_, Clock::now() + kLingerFor);
  DiscardFromClient();
}

void GuardedConnection::DiscardFromClient() {
  std::array<char, kChunk> chunk;
  while (true) {
    const ssize_t moved = ::recv(client_->fd(), chunk.data(), chunk.size(), 0);
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return;
    discard_budget_ -= std::min(discard_budget_, static_cast<size_t>(std::max<ssize_t>(moved, 0)));
    if (moved <= 0 || discard_budget_ == 0) break;
  }
  discard_budget_ = 0;
  HangUp();
}

void GuardedConnection::HangUp() {
  if (client_ != nullptr) done_client_ = std::move(client_);
  to_client_.clear();
  from_client_.clear();
  cleared_ = 0;
  server_full_ = false;
  if (server_ != nullptr) ::shutdown(server_->fd(), SHUT_WR);
}

void GuardedConnection::ForgetCalls() {
  // A call whose HEADERS still wait for credit was never counted.
  const uint32_t uncounted = segment_.opens_call ? frames_.last_call() : 0;
  for (const uint32_t call : std::vector<uint32_t>(frames_.open_calls()))
    if (call != uncounted && frames_.EndCall(call)) owner_.ReleaseCall(id_);
}

}  // namespace pinfeed
