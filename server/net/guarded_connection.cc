// SPDX-License-Identifier: Apache-2.0
#include "server/net/guarded_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "server/net/guard_frames.h"
#include "server/net/socket_stream.h"

namespace pinfeed {
namespace {

constexpr size_t kChunk = ClientBytes::kCapacity;
constexpr size_t kMaxDiscarded = 65536;
constexpr int kMaxRounds = 4;  // per call, so that other connections are served
constexpr std::chrono::seconds kDeniedFor(30);
constexpr std::chrono::seconds kFlushFor(10);
constexpr std::chrono::seconds kLingerFor(2);

}  // namespace

void GuardedConnection::OnCreditGranted(uint32_t credit) {
  credit_.Grant(credit);
  Pump();
}

void GuardedConnection::Pump() {
  if (client_ != nullptr && !credit_.PayOpening()) return;
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
      CloseServer();
      if (!denial_) HangUp();
      return;
    }
    const std::string_view bytes(chunk.data(), static_cast<size_t>(moved));
    calls_.OnServerBytes(bytes);
    if (client_ != nullptr && !denial_) to_client_.append(bytes);
  }
}

bool GuardedConnection::ClearWhatMayPass() {
  while (true) {
    if (!begun_ && calls_.begun()) Begin();
    if (client_ == nullptr) return false;
    if (from_client_.uncleared().empty()) return true;
    const ConnectionCalls::Segment& next = calls_.Check(from_client_.uncleared());
    if (!next.fault.empty()) {
      Refuse("sent " + next.fault);
      return false;
    }
    if (next.bytes == 0) return true;
    if (!credit_.Pay(next.cost)) return false;
    from_client_.Clear(next.bytes);
    const ConnectionCalls::Segment passed = calls_.Pass();
    if (std::string fault = calls_.Admit(passed); !fault.empty()) {
      Refuse(std::move(fault));
      return false;
    }
    if (passed.opens_call) OpenCall();
  }
}

void GuardedConnection::OpenCall() {
  const std::string denial = denial_ ? *denial_ : owner_.DenialReason();
  if (denial.empty()) return;
  const uint32_t call = calls_.last();
  if (!denial_) Deny(denial);
  if (client_ == nullptr) return;
  owner_.CountDenial(denial);
  to_client_ += PermissionDeniedResponse(call, denial);
  calls_.End(call);
}

// Disconnects gRPC. Cancels the open calls of this connection; each further call is answered with the denial.
void GuardedConnection::Deny(const std::string& why) {
  denial_ = why;
  end_by_ = Clock::now() + kDeniedFor;
  if (server_ == nullptr) return;
  if (!calls_.between_server_frames()) {
    HangUp();  // a frame of our own cannot go inside another frame
    return;
  }
  for (const uint32_t call : calls_.open())
    if (call != calls_.last()) to_client_ += CancelStream(call);
  ::shutdown(server_->fd(), SHUT_WR);
}

// Connects to gRPC, which allocates memory for each connection; so only once the client has sent valid
// SETTINGS.
void GuardedConnection::Begin() {
  begun_ = true;
  end_by_ = Clock::time_point::max();
  if (const std::string denial = owner_.DenialReason(); !denial.empty()) {
    Deny(denial);
    to_client_ += SettingsAndAck();
    return;
  }
  UniqueConnection server = owner_.ConnectToServer();
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
    if (denial_) {
      from_client_.DropCleared();
      FlushToClient();
      if (client_ == nullptr) return;
    }
    if (server_ != nullptr) from_client_.WriteTo(*server_);
    if (from_client_.blocked() || !all_cleared) return;
    if (!to_client_.empty()) return;  // the client must read before it is read from
    if (round >= kMaxRounds && !client_->has_more()) return;
    const ssize_t moved = client_->Read(chunk.data(), from_client_.room());
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
    from_client_.Append({chunk.data(), static_cast<size_t>(moved)});
  }
}

void GuardedConnection::Refuse(std::string fault) {
  fault_ = std::move(fault);
  if (client_ != nullptr && to_client_.empty() && calls_.between_server_frames()) {
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

GuardedConnection::Wait GuardedConnection::client_wait() const {
  if (client_ == nullptr) return {};
  const bool reads = credit_.flows() && !from_client_.blocked() && to_client_.empty();
  const bool writes = !to_client_.empty() || client_->needs_to_write();
  // While the client is not read from, only EPOLLRDHUP shows that a TCP client is gone.
  return {client_->fd(), (reads ? EPOLLIN : EPOLLRDHUP) | (writes ? EPOLLOUT : 0U)};
}

GuardedConnection::Wait GuardedConnection::server_wait() const {
  if (server_ == nullptr || server_gone_) return {};
  return {server_->fd(), (to_client_.empty() ? EPOLLIN : 0U) | (from_client_.blocked() ? EPOLLOUT : 0U)};
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
  if (client_ != nullptr) done_.push_back(std::move(client_));
  to_client_.clear();
  from_client_ = {};
  if (server_ == nullptr) return;
  if (server_gone_) return CloseServer();  // it is watched no more, so nothing else would
  ::shutdown(server_->fd(), SHUT_WR);
}

void GuardedConnection::CloseServer() {
  done_.push_back(std::move(server_));
  calls_.EndAll();
}

}  // namespace pinfeed
