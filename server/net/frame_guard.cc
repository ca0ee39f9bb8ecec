// SPDX-License-Identifier: Apache-2.0
#include "server/net/frame_guard.h"

#include <malloc.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "server/net/tls_server.h"

namespace pinfeed {
namespace {

constexpr std::chrono::milliseconds kPause(100);        // of accepting, when no descriptor is left
constexpr std::chrono::milliseconds kGrantInterval(5);  // between grants of credit
constexpr std::chrono::seconds kSweepInterval(1);
constexpr int kMaxAcceptedAtOnce = 64;                      // then open connections are served
constexpr std::chrono::seconds kSlowedWarningInterval(10);  // per user
constexpr size_t kTrimAfterEnded = 200;                     // connections, before memory is trimmed
constexpr size_t kSocketPairFds = 2;                        // descriptors that gRPC adds to a connection

// A quarter of the limit: sessions need descriptors too.
size_t MaxDescriptorsPerUser() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return SIZE_MAX;
  return static_cast<size_t>(limit.rlim_cur / 4);
}

}  // namespace

Result<std::unique_ptr<FrameGuard>> FrameGuard::Create(Listener listener, PeerRegistry& peers, Serve serve,
                                                       Refusals& refusals, Options options) {
  ASSIGN_OR_RETURN(std::unique_ptr<EventLoop> loop, EventLoop::Create(options.thread_name));
  std::unique_ptr<FrameGuard> guard(new FrameGuard(std::move(loop), std::move(listener), peers,
                                                   std::move(serve), refusals, std::move(options)));
  ASSIGN_OR_RETURN(guard->listening_, guard->loop_->Watch(guard->listener_.fd(), EPOLLIN,
                                                          [raw = guard.get()](uint32_t) { raw->Accept(); }));
  return guard;
}

FrameGuard::FrameGuard(std::unique_ptr<EventLoop> loop, Listener listener, PeerRegistry& peers, Serve serve,
                       Refusals& refusals, Options options)
    : loop_(std::move(loop)),
      listener_(std::move(listener)),
      peers_(peers),
      serve_(std::move(serve)),
      refusals_(refusals),
      options_(std::move(options)) {}

FrameGuard::~FrameGuard() {
  Stop();
}

void FrameGuard::Start() {
  loop_->At(Clock::now() + kSweepInterval, [this] { Sweep(); });
  loop_->Start();
}

void FrameGuard::StopAccepting() {
  loop_->Post([this] {
    accepts_ = false;
    loop_->Change(listening_, 0);
  });
}

void FrameGuard::Stop() {
  if (std::exchange(stopped_, true)) return;
  loop_->Stop();
  accepts_ = false;
  for (auto& [id, entry] : entries_) entry.connection->OnServerGone();
  while (!entries_.empty()) RemoveConnection(entries_.begin()->first);
}

// ---- Accepting

void FrameGuard::Accept() {
  for (int round = 0; round < kMaxAcceptedAtOnce; ++round) {
    Result<std::optional<Listener::Connection>> accepted = listener_.Accept();
    if (!accepted.ok()) {
      loop_->Change(listening_, 0);
      loop_->At(Clock::now() + kPause, [this] {
        if (accepts_) loop_->Change(listening_, EPOLLIN);
      });
      return;
    }
    if (!accepted->has_value()) return;
    Add(std::move(**accepted));
  }
}

void FrameGuard::Add(Listener::Connection accepted) {
  const bool remote = accepted.peer.uid == kRemoteUser;
  const std::shared_ptr<Account> account =
      AccountOf(remote ? Describe(accepted.peer) : "uid " + std::to_string(accepted.peer.uid));
  if (account->connections >= options_.connections || account->descriptors >= MaxDescriptorsPerUser()) {
    refusals_.Count(Refusal::kDescriptors, "a connection from " + Describe(accepted.peer) + ": " +
                                               std::to_string(account->connections) +
                                               " of this user are open");
    return;
  }
  ++account->connections;
  ++account->descriptors;
  const uint64_t id = next_id_++;
  std::unique_ptr<ByteStream> stream = options_.secure == nullptr
                                           ? std::make_unique<SocketStream>(std::move(accepted.fd))
                                           : options_.secure(std::move(accepted.fd));
  Entry entry;
  entry.peer = accepted.peer;
  entry.connection_account = entry.account = account;
  GuardedConnection::Owner& owner = *this;  // the base class is private
  entry.connection = std::make_unique<GuardedConnection>(id, owner, std::move(stream), options_.cost,
                                                         Clock::now() + options_.begin_within);
  GuardedConnection& connection = *entries_.emplace(id, std::move(entry)).first->second.connection;
  connection.Pump();
  UpdateWatches(id);
}

std::shared_ptr<FrameGuard::Account> FrameGuard::AccountOf(const std::string& who) {
  std::shared_ptr<Account>& account = accounts_[who];
  if (account == nullptr) {
    account = std::make_shared<Account>();
    account->who = who;
  }
  return account;
}

// ---- Events

bool FrameGuard::SetWatch(Side& side, int fd, uint32_t events,
                          const std::function<void(uint32_t)>& on_events) {
  if (side.watch == 0) {
    const Result<EventLoop::WatchId> watch = loop_->Watch(fd, events, on_events);
    if (!watch.ok()) {
      spdlog::warn("closing a gRPC connection, which cannot be watched: {}", watch.status().ToString());
      return false;
    }
    side = {*watch, events};
  } else if (side.events != events) {
    loop_->Change(side.watch, events);
    side.events = events;
  }
  return true;
}

void FrameGuard::UpdateWatches(uint64_t id) {
  const auto found = entries_.find(id);
  Entry& entry = found->second;
  GuardedConnection& connection = *entry.connection;
  ReportFault(entry);
  const auto unwatch = [this](Side& side) { loop_->Remove(std::exchange(side.watch, 0)); };
  if (connection.client_fd() < 0) unwatch(entry.client);
  if (connection.server_fd() < 0 || connection.server_gone()) unwatch(entry.server);
  connection.CloseDone();
  if (connection.over()) {
    RemoveConnection(id);
    return;
  }
  const bool client_watched =
      connection.client_fd() < 0 || SetWatch(entry.client, connection.client_fd(), connection.client_events(),
                                             [this, id](uint32_t events) { OnClient(id, events); });
  const bool server_watched = connection.server_fd() < 0 || connection.server_gone() ||
                              SetWatch(entry.server, connection.server_fd(), connection.server_events(),
                                       [this, id](uint32_t events) { OnServer(id, events); });
  if (!client_watched || !server_watched) RemoveConnection(id);
}

void FrameGuard::OnClient(uint64_t id, uint32_t events) {
  GuardedConnection& connection = *entries_.at(id).connection;
  // The client is gone, so its unforwarded bytes are dropped.
  if ((events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) {
    connection.HangUp();
  } else {
    connection.Pump();
  }
  UpdateWatches(id);
}

void FrameGuard::OnServer(uint64_t id, uint32_t events) {
  GuardedConnection& connection = *entries_.at(id).connection;
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
    connection.OnServerGone();
  } else {
    connection.Pump();
  }
  UpdateWatches(id);
}

void FrameGuard::ReportFault(Entry& entry) {
  const GuardedConnection& connection = *entry.connection;
  const std::string& broken = connection.stream_fault();
  if (entry.fault_reported || (connection.fault().empty() && broken.empty())) return;
  entry.fault_reported = true;
  if (!broken.empty()) {
    refusals_.Count(Refusal::kCertificate, "a connection from " + Describe(entry.peer) + ": " + broken);
  } else {
    const std::string who = entry.identified ? entry.account->who : Describe(entry.peer);
    refusals_.Count(Refusal::kHttp2,
                    "a connection of " + who + " is closed: the client " + connection.fault());
  }
}

void FrameGuard::GrantCredit() {
  grants_scheduled_ = false;
  const Clock::time_point now = Clock::now();
  bool anyone_waiting = false;
  for (const auto& [who, account] : accounts_) {
    while (const auto grant = account->credit.NextGrant(now)) {
      entries_.at(grant->first).connection->OnCreditGranted(grant->second);
      UpdateWatches(grant->first);
    }
    anyone_waiting = anyone_waiting || account->credit.anyone_waiting();
  }
  if (anyone_waiting) ScheduleGrants();
}

void FrameGuard::ScheduleGrants() {
  if (std::exchange(grants_scheduled_, true)) return;
  loop_->At(Clock::now() + kGrantInterval, [this] { GrantCredit(); });
}

void FrameGuard::Sweep() {
  const Clock::time_point now = Clock::now();
  std::vector<uint64_t> late;
  for (const auto& [id, entry] : entries_)
    if (entry.connection->late(now)) late.push_back(id);
  for (const uint64_t id : late) {
    Entry& entry = entries_.at(id);
    if (!entry.connection->begun() && !entry.fault_reported) {
      refusals_.Count(Refusal::kHttp2, "a connection from " + Describe(entry.peer) +
                                           ", which is closed: no HTTP/2 SETTINGS came in time");
    }
    entry.connection->HangUp();
    UpdateWatches(id);
  }
  // glibc keeps freed memory until it is trimmed.
  if (ended_ >= kTrimAfterEnded && entries_.size() < kTrimAfterEnded) {
    ended_ = 0;
    ::malloc_trim(0);
  }
  // An account stays until its credit is full again, so that reconnecting gains a user nothing.
  std::erase_if(accounts_, [now](const auto& item) {
    return item.second.use_count() == 1 && item.second->credit.full(now);
  });
  loop_->At(now + kSweepInterval, [this] { Sweep(); });
}

void FrameGuard::RemoveConnection(uint64_t id) {
  const auto found = entries_.find(id);
  Entry& entry = found->second;
  for (Side* const side : {&entry.client, &entry.server}) loop_->Remove(side->watch);
  entry.account->credit.Remove(id);
  --entry.connection_account->connections;
  entry.connection_account->descriptors -= entry.descriptors;
  ++ended_;
  entry.connection.reset();  // its destructor releases its calls
  entries_.erase(found);
}

// ---- Services for connections

bool FrameGuard::RequestCredit(uint64_t id, uint32_t cost) {
  Entry& entry = entries_.at(id);
  Identify(entry);
  Account& account = *entry.account;
  if (account.credit.TryTake(cost, Clock::now())) return true;
  account.credit.Enqueue(id, cost, !entry.connection->begun());
  if (const Clock::time_point now = Clock::now(); now >= account.next_warning_at) {
    account.next_warning_at = now + kSlowedWarningInterval;
    spdlog::warn("{} exceeds the gRPC rate allowed for one user: its connections are slowed down",
                 account.who);
  }
  ScheduleGrants();
  return false;
}

// Until TLS identifies the client, its costs are charged to the account that all remote clients share.
void FrameGuard::Identify(Entry& entry) {
  const TlsPeer* const peer = entry.connection->tls_peer();
  if (entry.identified || peer == nullptr) return;
  entry.identified = true;
  entry.account = AccountOf(Describe(*peer));
}

UniqueFd FrameGuard::ConnectToServer(uint64_t id) {
  Entry& entry = entries_.at(id);
  const auto refuse = [&](const std::string& why) {
    refusals_.Count(Refusal::kDescriptors, "a connection from " + Describe(entry.peer) + ": " + why);
    return UniqueFd();
  };
  if (entry.connection_account->descriptors + kSocketPairFds > MaxDescriptorsPerUser()) {
    return refuse(std::to_string(entry.connection_account->descriptors) +
                  " descriptors are open for connections of this user");
  }
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return refuse(ErrnoStatus("create a socket pair", errno).ToString());
  UniqueFd ours(ends[0]);
  UniqueFd grpcs(ends[1]);
  entry.connection_account->descriptors += kSocketPairFds;
  entry.descriptors += kSocketPairFds;
  const TlsPeer* const peer = entry.connection->tls_peer();
  peers_.Set(grpcs.get(), entry.peer, peer == nullptr ? std::vector<std::string>() : peer->names);
  serve_(std::move(grpcs));
  return ours;
}

std::string FrameGuard::DenialReason(uint64_t id) {
  const TlsPeer* const peer = entries_.at(id).connection->tls_peer();
  return peer == nullptr || options_.denial == nullptr ? std::string() : options_.denial(*peer);
}

void FrameGuard::CountDenial(const std::string& why) {
  refusals_.Count(Refusal::kCertificate, "a call to the admin endpoint: " + why);
}

std::string FrameGuard::AdmitCall(uint64_t id, size_t of_connection) {
  Entry& entry = entries_.at(id);
  Identify(entry);  // first, so that the call is counted in the right account
  const size_t of_user = ++entry.account->calls;
  std::string whose;
  if (of_connection > ClientFrameChecker::kMaxOpenCalls) {
    whose = std::to_string(ClientFrameChecker::kMaxOpenCalls) + " calls are open on one connection";
  } else if (of_user > kMaxCallsPerUser && of_connection > 1) {  // every connection may have one call
    whose = std::to_string(kMaxCallsPerUser) + " calls of one user are open";
  } else {
    return {};
  }
  const Status error =
      ResourceExhausted(whose + ", counting answered ones that the client has not read; connection closed");
  refusals_.CountRequest(entry.identified ? entry.account->who : Describe(entry.peer), error);
  entry.fault_reported = true;
  return error.message();
}

void FrameGuard::ReleaseCall(uint64_t id) {
  size_t& calls = entries_.at(id).account->calls;
  PF_CHECK(calls > 0, "a released call must have been counted");
  --calls;
}

}  // namespace pinfeed
