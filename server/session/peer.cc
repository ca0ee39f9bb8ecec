// SPDX-License-Identifier: Apache-2.0
#include "server/session/peer.h"

#include <charconv>

namespace pinfeed {

std::string Describe(const Peer& peer) {
  return "pid " + std::to_string(peer.pid) + ", uid " + std::to_string(peer.uid);
}

void PeerRegistry::Set(int fd, const Peer& peer) {
  const MutexLock lock(mutex_);
  peers_[fd] = peer;
}

std::optional<Peer> PeerRegistry::Find(std::string_view grpc_peer) const {
  constexpr std::string_view kPrefix = "fd:";
  if (grpc_peer.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  grpc_peer.remove_prefix(kPrefix.size());
  int fd = -1;
  const auto [end, error] = std::from_chars(grpc_peer.data(), grpc_peer.data() + grpc_peer.size(), fd);
  if (error != std::errc{} || end != grpc_peer.data() + grpc_peer.size()) return std::nullopt;
  const MutexLock lock(mutex_);
  const auto found = peers_.find(fd);
  if (found == peers_.end()) return std::nullopt;
  return found->second;
}

}  // namespace pinfeed
