// SPDX-License-Identifier: Apache-2.0
// The other process of tests over the stand-in driver: tests/stand_in_cuda/peer.cc.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "common/unique_handle.h"
#include "tests/testing.h"

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
  UniqueFd ReceiveFd() const {
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC) != 1) return UniqueFd();
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return UniqueFd();
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return UniqueFd(fd);
  }
  void HangUp() { socket_.reset(); }
  // It ends when it reads the end of its socket.
  int Dismiss() {
    socket_.reset();
    return Wait();
  }
  void SendFd(int fd) const {
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    ASSERT_EQ(::sendmsg(socket_.get(), &message, 0), 1);
  }

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
};

}  // namespace pinfeed
