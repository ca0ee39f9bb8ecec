// SPDX-License-Identifier: Apache-2.0
// The other process of tests over the stand-in driver: tests/support/stand_in_cuda/peer.cc.
#pragma once

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/base/unique_handle.h"
#include "tests/support/stand_in_cuda/passed_fd.h"
#include "tests/support/testing.h"

namespace pinfeed {

// A process that runs PINFEED_TEST_PEER with one end of a socket pair; the other end is `socket`.
class Peer {
 public:
  explicit Peer(const char* task) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    socket_.reset(ends[0]);
    const UniqueFd theirs(ends[1]);
    const int inherited = ::dup(theirs.get());  // without CLOEXEC
    const std::string number = std::to_string(inherited);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::execl(PINFEED_TEST_PEER, PINFEED_TEST_PEER, task, number.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(inherited);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  int socket() const { return socket_.get(); }
  pid_t pid() const { return pid_; }
  int Wait() const {
    int status = -1;
    return ::waitpid(pid_, &status, 0) == pid_ ? status : -1;
  }
  // The descriptor that came, or none.
  UniqueFd ReceiveFd() const { return pinfeed::ReceiveFd(socket_.get()); }
  void HangUp() { socket_.reset(); }
  // It ends when it reads the end of its socket.
  int Dismiss() {
    socket_.reset();
    return Wait();
  }
  void SendFd(int fd) const { ASSERT_TRUE(pinfeed::SendFd(socket_.get(), fd)); }

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
};

}  // namespace pinfeed
