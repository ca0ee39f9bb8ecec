// SPDX-License-Identifier: Apache-2.0
//
// Processes of an experiment: forked from a program that never touches CUDA itself, so that nothing of the
// driver is inherited unless the experiment is about that. In: where a process shall live and what it does.
// Out: its pid, pidfd and a socket to it.
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <functional>
#include <string>

#include "experiment.h"

namespace pinfeed {

// Where a process lives. A PID namespace comes with a mount namespace and its own /proc, as in a container.
struct Place {
  std::string name = "same";
  int namespaces = 0;       // CLONE_NEW* flags
  bool own_shm = false;     // a /dev/shm of its own; needs CLONE_NEWNS
  bool second_pid = false;  // in a new PID namespace: process 2, not 1
  uid_t uid = 0;
};

struct Process {
  pid_t pid = -1;
  int pidfd = -1;
  int socket = -1;
};

inline bool Readable(int fd, double seconds) {
  pollfd one{fd, POLLIN, 0};
  return poll(&one, 1, int(seconds * 1000)) > 0;
}

// Memory that this process and all that it forks later see, at the same address.
inline void* SharedMemory(std::size_t bytes) {
  int fd = SYS(memfd_create("pinfeed-experiment", MFD_CLOEXEC));
  SYS(ftruncate(fd, off_t(bytes)));
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) Fail(__FILE__, __LINE__, "map shared memory", std::strerror(errno));
  close(fd);
  return address;
}

inline void WriteFile(const char* path, const char* text) {
  int fd = SYS(open(path, O_WRONLY));
  SYS(write(fd, text, std::strlen(text)));
  close(fd);
}

// Moves the calling process, a child of the experiment, to its place; with a PID namespace, returns in the
// process inside it.
inline void MoveTo(const Place& place) {
  if (place.namespaces != 0) SYS(unshare(place.namespaces));
  if ((place.namespaces & CLONE_NEWUSER) != 0) {
    WriteFile("/proc/self/setgroups", "deny");
    WriteFile("/proc/self/uid_map", "0 0 1");
    WriteFile("/proc/self/gid_map", "0 0 1");
  }
  if ((place.namespaces & CLONE_NEWNS) != 0) SYS(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr));
  for (int levels = (place.namespaces & CLONE_NEWPID) == 0 ? 0
                    : place.second_pid                     ? 2
                                                           : 1;
       levels > 0; --levels) {
    pid_t inner = SYS(fork());
    if (inner != 0) {
      int status = 0;
      waitpid(inner, &status, 0);
      _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
    }
    SYS(prctl(PR_SET_PDEATHSIG, SIGKILL));
  }
  if ((place.namespaces & CLONE_NEWPID) != 0) SYS(mount("proc", "/proc", "proc", 0, nullptr));
  if (place.own_shm) SYS(mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=256m,mode=1777"));
  if (place.uid != 0) {
    SYS(setgroups(0, nullptr));
    SYS(setgid(place.uid));
    SYS(setuid(place.uid));
    SYS(prctl(PR_SET_PDEATHSIG, SIGKILL));  // a change of user clears it
  }
}

// Runs `body(socket)` in a new process and ends it without any clean-up of its own, as a crash would.
inline Process Spawn(const Place& place, const std::function<void(int)>& body) {
  int ends[2];
  SYS(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
  pid_t pid = SYS(fork());
  if (pid == 0) {
    SYS(prctl(PR_SET_PDEATHSIG, SIGKILL));
    close(ends[0]);
    MoveTo(place);
    body(ends[1]);
    _exit(0);
  }
  close(ends[1]);
  return {pid, int(SYS(syscall(SYS_pidfd_open, pid, 0))), ends[0]};
}

inline bool Ended(const Process& process, double seconds) {
  return Readable(process.pidfd, seconds);
}

inline void Reap(Process* process) {
  if (process->pid < 0) return;
  kill(process->pid, SIGKILL);
  waitpid(process->pid, nullptr, 0);
  close(process->pidfd);
  close(process->socket);
  *process = {};
}

// One message of a fixed size, with at most one descriptor.
inline void SendMessage(int socket, const void* data, std::size_t size, int fd) {
  iovec part{const_cast<void*>(data), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  SYS(sendmsg(socket, &message, MSG_NOSIGNAL));
}

// False when the other end is gone. `fd` is -1 if none came.
inline bool ReceiveMessage(int socket, void* data, std::size_t size, int* fd) {
  iovec part{data, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  *fd = -1;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != ssize_t(size)) return false;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) std::memcpy(fd, CMSG_DATA(header), sizeof(int));
  return true;
}

}  // namespace pinfeed
