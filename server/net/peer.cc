// SPDX-License-Identifier: Apache-2.0
#include "server/net/peer.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "common/base/parse_number.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; newer than our C library's headers
#endif

namespace pinfeed {
namespace {

// Parses gRPC's name of a connection. Returns -1 if it has another form.
int DescriptorOf(std::string_view grpc_peer) {
  constexpr std::string_view kPrefix = "fd:";
  if (grpc_peer.substr(0, kPrefix.size()) != kPrefix) return -1;
  grpc_peer.remove_prefix(kPrefix.size());
  return ParseNumber<int>(grpc_peer).value_or(-1);
}

}  // namespace

Result<UniqueFd> OpenPeerPidfd(int connection, pid_t pid) {
  int pidfd = -1;
  socklen_t length = sizeof pidfd;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0) return UniqueFd(pidfd);
  UniqueFd opened(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!opened) return ErrnoStatus("attach: open a pidfd of process " + std::to_string(pid), errno);
  return opened;
}

std::string Describe(const Peer& peer) {
  if (peer.uid == kRemoteUser) return "the network";
  return "pid " + std::to_string(peer.pid) + ", uid " + std::to_string(peer.uid);
}

// The line "NSpid: 12 1" lists a process's pid in each namespace from ours downwards. Unlike the links in
// /proc/PID/ns, it is readable for processes of every user.
Status CheckSamePidNamespace(pid_t pid, const std::string& proc) {
  const std::string path = proc + "/" + std::to_string(pid) + "/status";
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kKey = "NSpid:";
    if (line.compare(0, kKey.size(), kKey) != 0) continue;
    std::istringstream numbers(line.substr(kKey.size()));
    std::vector<pid_t> pids;
    for (pid_t number = 0; numbers >> number;) pids.push_back(number);
    if (pids.size() == 1 && pids[0] == pid) return OkStatus();
    return FailedPrecondition("the client (pid " + std::to_string(pid) +
                              ") is in another PID namespace than the daemon");
  }
  return FailedPrecondition("whether the client (pid " + std::to_string(pid) +
                            ") is in the daemon's PID namespace cannot be read from " + path);
}

void PeerRegistry::Set(int fd, const Peer& peer, std::vector<std::string> names) {
  const MutexLock lock(mutex_);
  connections_[fd] = {peer, std::move(names)};
}

std::optional<PeerRegistry::Connection> PeerRegistry::Find(std::string_view grpc_peer) const {
  const int fd = DescriptorOf(grpc_peer);
  const MutexLock lock(mutex_);
  const auto found = connections_.find(fd);
  if (found == connections_.end()) return std::nullopt;
  return found->second;
}

}  // namespace pinfeed
