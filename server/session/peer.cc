// SPDX-License-Identifier: Apache-2.0
#include "server/session/peer.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>

namespace pinfeed {
namespace {

// Each socket has an inode number of its own while it is open; 0 when `fd` is not open.
ino_t SocketOf(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? info.st_ino : 0;
}

}  // namespace

std::string Describe(const Peer& peer) {
  return "pid " + std::to_string(peer.pid) + ", uid " + std::to_string(peer.uid);
}

void PeerRegistry::Set(int fd, const Peer& peer) {
  const ino_t socket = SocketOf(fd);
  const MutexLock lock(mutex_);
  peers_[fd] = {peer, socket};
}

size_t PeerRegistry::CountOpen(uid_t uid) {
  const MutexLock lock(mutex_);
  std::erase_if(peers_, [](const auto& item) { return SocketOf(item.first) != item.second.socket; });
  return static_cast<size_t>(std::count_if(peers_.begin(), peers_.end(),
                                           [&](const auto& item) { return item.second.peer.uid == uid; }));
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
  return found->second.peer;
}

}  // namespace pinfeed
