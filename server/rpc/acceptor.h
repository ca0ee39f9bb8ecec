// SPDX-License-Identifier: Apache-2.0
// The accept loop of a gRPC socket. In: connections. Out: the same, handed on with their credentials on
// record.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "common/result.h"
#include "common/unique_handle.h"
#include "server/session/listener.h"
#include "server/session/peer.h"
#include "server/telemetry/refusals.h"

namespace pinfeed {

// Purpose: accepts, enters the peer, hands on; closes what is above a user's share of connections. Owns: the
// listening socket and a thread. Borrows: the registry and the refusals (outlive it). Threads: Start and Stop
// from the owner. Errors: when no descriptor is left it pauses instead of spinning; the connection waits in
// the queue.
class Acceptor {
 public:
  using HandOver = std::function<void(UniqueFd)>;

  // Trainers hold a connection while they open their feed, tools one each.
  static constexpr size_t kMaxConnectionsAUser = 512;

  // A user has no more connections than `most`, nor than a quarter of the descriptors.
  static Result<std::unique_ptr<Acceptor>> Create(Listener listener, PeerRegistry& peers, Refusals& refusals,
                                                  HandOver hand_over, size_t most = kMaxConnectionsAUser);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  void Start();
  // Idempotent.
  void Stop();

 private:
  Acceptor(Listener listener, UniqueFd stop, PeerRegistry& peers, Refusals& refusals, HandOver hand_over,
           size_t most)
      : listener_(std::move(listener)),
        stop_(std::move(stop)),
        peers_(peers),
        refusals_(refusals),
        hand_over_(std::move(hand_over)),
        most_(most) {}
  void Run();

  Listener listener_;
  const UniqueFd stop_;
  PeerRegistry& peers_;
  Refusals& refusals_;
  const HandOver hand_over_;
  const size_t most_;  // connections of a user
  std::thread thread_;
};

}  // namespace pinfeed
