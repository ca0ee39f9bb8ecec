// SPDX-License-Identifier: Apache-2.0
#include "server/net/frame_guard.h"

#include <sys/epoll.h>

#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/os/freed_memory.h"
#include "server/net/socket_stream.h"

namespace pinfeed {
namespace {

constexpr std::chrono::milliseconds kPause(100);        // of accepting, when no descriptor is left
constexpr std::chrono::milliseconds kGrantInterval(5);  // between grants of credit
constexpr std::chrono::seconds kSweepInterval(1);
constexpr int kMaxAcceptedAtOnce = 64;   // then open connections are served
constexpr size_t kTrimAfterEnded = 200;  // connections, before memory is trimmed

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
      options_(std::move(options)),
      services_{peers, refusals, std::move(serve), options_.denial, [this] { ScheduleGrants(); }} {}

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
    listening_.Change(0);
  });
}

void FrameGuard::HangUpAt(Clock::time_point time) {
  loop_->Post([this, time] {
    loop_->At(time, [this] {
      std::vector<uint64_t> open;
      for (const auto& [id, watched] : clients_) open.push_back(id);
      for (const uint64_t id : open) {
        clients_.at(id).client->connection().HangUp();
        UpdateWatches(id);
      }
    });
  });
}

void FrameGuard::Stop() {
  if (std::exchange(stopped_, true)) return;
  loop_->Stop();
  accepts_ = false;
  for (auto& [id, watched] : clients_) watched.client->connection().OnServerGone();
  while (!clients_.empty()) RemoveClient(clients_.begin()->first);
}

// ---- Accepting

void FrameGuard::Accept() {
  const Status accepted = listener_.Accept(
      kMaxAcceptedAtOnce, [this](Listener::Connection connection) { Add(std::move(connection)); });
  if (accepted.ok()) return;
  listening_.Change(0);
  loop_->At(Clock::now() + kPause, [this] {
    if (accepts_) listening_.Change(EPOLLIN);
  });
}

void FrameGuard::Add(Listener::Connection accepted) {
  std::shared_ptr<UserAccount> account = GuardClient::Admit(services_, accepted.peer, options_.connections);
  if (account == nullptr) return;
  const uint64_t id = next_id_++;
  std::unique_ptr<ByteStream> stream = options_.secure == nullptr
                                           ? std::make_unique<SocketStream>(std::move(accepted.fd))
                                           : options_.secure(UniqueFd(accepted.fd.release()));
  Watched watched{std::make_unique<GuardClient>(id, services_, accepted.peer, std::move(account),
                                                std::move(stream), options_.cost,
                                                Clock::now() + options_.begin_within)};
  clients_.emplace(id, std::move(watched)).first->second.client->connection().Pump();
  UpdateWatches(id);
}

// ---- Events

bool FrameGuard::SetWatch(Side& side, GuardedConnection::Wait wait,
                          const std::function<void(uint32_t)>& on_events) {
  if (wait.fd < 0) return true;
  if (!side.watched) {
    Result<EventLoop::Watched> watched = loop_->Watch(wait.fd, wait.events, on_events);
    if (!watched.ok()) {
      spdlog::warn("closing a gRPC connection, which cannot be watched: {}", watched.status().ToString());
      return false;
    }
    side = {*std::move(watched), wait.events};
  } else if (side.events != wait.events) {
    side.watched.Change(wait.events);
    side.events = wait.events;
  }
  return true;
}

void FrameGuard::UpdateWatches(uint64_t id) {
  Watched& watched = clients_.at(id);
  watched.client->ReportFault();
  GuardedConnection& connection = watched.client->connection();
  const GuardedConnection::Wait client = connection.client_wait();
  const GuardedConnection::Wait server = connection.server_wait();
  if (client.fd < 0) watched.client_side.watched.End();
  if (server.fd < 0) watched.server_side.watched.End();
  connection.CloseDone();
  if (connection.over() ||
      !SetWatch(watched.client_side, client, [this, id](uint32_t events) { OnClient(id, events); }) ||
      !SetWatch(watched.server_side, server, [this, id](uint32_t events) { OnServer(id, events); }))
    RemoveClient(id);
}

void FrameGuard::OnClient(uint64_t id, uint32_t events) {
  GuardedConnection& connection = clients_.at(id).client->connection();
  // The client is gone, so its unforwarded bytes are dropped.
  if ((events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) {
    connection.HangUp();
  } else {
    connection.Pump();
  }
  UpdateWatches(id);
}

void FrameGuard::OnServer(uint64_t id, uint32_t events) {
  GuardedConnection& connection = clients_.at(id).client->connection();
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
    connection.OnServerGone();
  } else {
    connection.Pump();
  }
  UpdateWatches(id);
}

void FrameGuard::GrantCredit() {
  grants_scheduled_ = false;
  const bool anyone_waiting =
      services_.accounts.GrantCredit(Clock::now(), [this](uint64_t id, uint32_t credit) {
        clients_.at(id).client->connection().OnCreditGranted(credit);
        UpdateWatches(id);
      });
  if (anyone_waiting) ScheduleGrants();
}

void FrameGuard::ScheduleGrants() {
  if (std::exchange(grants_scheduled_, true)) return;
  loop_->At(Clock::now() + kGrantInterval, [this] { GrantCredit(); });
}

void FrameGuard::Sweep() {
  const Clock::time_point now = Clock::now();
  std::vector<uint64_t> late;
  for (auto& [id, watched] : clients_)
    if (watched.client->connection().late(now)) late.push_back(id);
  for (const uint64_t id : late) {
    clients_.at(id).client->EndLate();
    UpdateWatches(id);
  }
  // glibc keeps freed memory until it is trimmed.
  if (ended_ >= kTrimAfterEnded && clients_.size() < kTrimAfterEnded) {
    ended_ = 0;
    ReturnFreedMemory();
  }
  services_.accounts.ForgetUnused(now);
  loop_->At(now + kSweepInterval, [this] { Sweep(); });
}

void FrameGuard::RemoveClient(uint64_t id) {
  ++ended_;
  clients_.erase(id);
}

}  // namespace pinfeed
