// SPDX-License-Identifier: Apache-2.0
#include "server/net/guard_client.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/os/foreign_fds.h"
#include "server/net/descriptor_room.h"
#include "server/net/tls_server.h"

namespace pinfeed {
namespace {

constexpr std::chrono::seconds kSlowedWarningInterval(10);  // per user
constexpr size_t kSocketPairFds = 2;                        // descriptors that gRPC adds to a connection

// A quarter of the limit: sessions need descriptors too.
size_t MaxDescriptorsPerUser() {
  return DescriptorLimit() / 4;
}

}  // namespace

std::shared_ptr<UserAccount> GuardClient::Admit(Services& services, const Peer& peer,
                                                size_t max_connections) {
  const bool remote = peer.uid == kRemoteUser;
  std::shared_ptr<UserAccount> account =
      services.accounts.Of(remote ? Describe(peer) : "uid " + std::to_string(peer.uid));
  if (account->connections < max_connections && account->descriptors < MaxDescriptorsPerUser())
    return account;
  services.refusals.Count(Refusal::kDescriptors, "a connection from " + Describe(peer) + ": " +
                                                     std::to_string(account->connections) +
                                                     " of this user are open");
  return nullptr;
}

GuardClient::GuardClient(uint64_t id, Services& services, const Peer& peer,
                         std::shared_ptr<UserAccount> account, std::unique_ptr<ByteStream> stream,
                         uint32_t cost, Clock::time_point begin_by)
    : id_(id),
      services_(services),
      peer_(peer),
      connection_account_(std::move(account)),
      account_(connection_account_),
      connection_(*this, std::move(stream), cost, begin_by) {
  ++connection_account_->connections;
  connection_account_->descriptors += descriptors_;
}

GuardClient::~GuardClient() {
  account_->credit.Remove(id_);
  --connection_account_->connections;
  connection_account_->descriptors -= descriptors_;
}

void GuardClient::ReportFault() {
  const std::string& broken = connection_.stream_fault();
  if (fault_reported_ || (connection_.fault().empty() && broken.empty())) return;
  fault_reported_ = true;
  if (!broken.empty()) {
    services_.refusals.Count(Refusal::kCertificate, "a connection from " + Describe(peer_) + ": " + broken);
  } else {
    services_.refusals.Count(Refusal::kHttp2,
                             "a connection of " + who() + " is closed: the client " + connection_.fault());
  }
}

void GuardClient::EndLate() {
  if (!connection_.begun() && !fault_reported_) {
    services_.refusals.Count(Refusal::kHttp2, "a connection from " + Describe(peer_) +
                                                  ", which is closed: no HTTP/2 SETTINGS came in time");
  }
  connection_.HangUp();
}

// Until TLS identifies the client, its costs are charged to the account that all remote clients share.
void GuardClient::Identify() {
  const TlsPeer* const tls = connection_.tls_peer();
  if (identified_ || tls == nullptr) return;
  identified_ = true;
  account_ = services_.accounts.Of(Describe(*tls));
}

bool GuardClient::RequestCredit(uint32_t cost) {
  Identify();
  if (account_->credit.TryTake(cost, Clock::now())) return true;
  account_->credit.Enqueue(id_, cost, !connection_.begun());
  if (const Clock::time_point now = Clock::now(); now >= account_->next_warning_at) {
    account_->next_warning_at = now + kSlowedWarningInterval;
    spdlog::warn("{} exceeds the gRPC rate allowed for one user: its connections are slowed down",
                 account_->who);
  }
  services_.grant_soon();
  return false;
}

UniqueConnection GuardClient::ConnectToServer() {
  const auto refuse = [&](const std::string& why) {
    services_.refusals.Count(Refusal::kDescriptors, "a connection from " + Describe(peer_) + ": " + why);
    return UniqueConnection();
  };
  if (connection_account_->descriptors + kSocketPairFds > MaxDescriptorsPerUser()) {
    return refuse(std::to_string(connection_account_->descriptors) +
                  " descriptors are open for connections of this user");
  }
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return refuse(ErrnoStatus("create a socket pair", errno).ToString());
  RefuseForeignFds(ends[0]);  // it is gRPC that sends: closing this end need not wait
  UniqueConnection ours(ends[0]);
  UniqueFd grpcs(ends[1]);
  if (IsLeftToFiles(std::max(ours.get(), grpcs.get()), DescriptorLimit()))
    return refuse("the last descriptors are left to the files of samples");
  connection_account_->descriptors += kSocketPairFds;
  descriptors_ += kSocketPairFds;
  const TlsPeer* const tls = connection_.tls_peer();
  services_.peers.Set(grpcs.get(), peer_, tls == nullptr ? std::vector<std::string>() : tls->names);
  services_.serve(std::move(grpcs));
  return ours;
}

std::string GuardClient::DenialReason() {
  const TlsPeer* const tls = connection_.tls_peer();
  return tls == nullptr || services_.denial == nullptr ? std::string() : services_.denial(*tls);
}

void GuardClient::CountDenial(const std::string& why) {
  services_.refusals.Count(Refusal::kCertificate, "a call to the admin endpoint: " + why);
}

std::string GuardClient::AdmitCall(size_t of_connection) {
  Identify();  // first, so that the call is counted in the right account
  const size_t of_user = ++account_->calls;
  if (of_connection > ClientFrameChecker::kMaxOpenCalls) {
    return RefuseCalls(std::to_string(ClientFrameChecker::kMaxOpenCalls) +
                       " calls are open on one connection");
  }
  if (of_user > kMaxCallsPerUser && of_connection > 1) {  // every connection may have one call
    return RefuseCalls(std::to_string(kMaxCallsPerUser) + " calls of one user are open");
  }
  return {};
}

std::string GuardClient::AdmitMessage(uint64_t bytes) {
  account_->message_bytes += bytes;
  if (account_->message_bytes <= kMaxMessageBytesPerUser) return {};
  return RefuseCalls("the open calls of one user have requests of more than " +
                     std::to_string(kMaxMessageBytesPerUser) + " bytes");
}

std::string GuardClient::RefuseCalls(const std::string& what) {
  const Status error =
      ResourceExhausted(what + ", counting answered ones that the client has not read; connection closed");
  services_.refusals.CountRequest(who(), error);
  fault_reported_ = true;
  return error.message();
}

void GuardClient::ReleaseCall(uint64_t message_bytes) {
  PF_CHECK(account_->calls > 0 && account_->message_bytes >= message_bytes,
           "a released call must have been counted");
  --account_->calls;
  account_->message_bytes -= message_bytes;
}

}  // namespace pinfeed
