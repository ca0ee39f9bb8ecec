// SPDX-License-Identifier: Apache-2.0
#include "tests/daemon_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace pinfeed {
namespace {

constexpr int kReadyFd = 3;
constexpr int kWaitMs = 30'000;

// waitid's P_PIDFD is newer than some headers.
constexpr auto kPidfd = static_cast<idtype_t>(3);

}  // namespace

DaemonProcess::DaemonProcess(std::vector<std::string> arguments, std::vector<std::string> wrapper) {
  std::filesystem::create_directory(socket_dir());
  int pipe_ends[2];
  PF_CHECK(::pipe2(pipe_ends, O_CLOEXEC) == 0, "pipe2");
  ready_.reset(pipe_ends[0]);
  const UniqueFd write_end(pipe_ends[1]);

  // A daemon does not outlive a test program that is killed.
  std::vector<std::string> words = {"setpriv", "--pdeathsig", "KILL"};
  for (std::string& word : wrapper) words.push_back(std::move(word));
  for (const char* word : {PINFEED_DAEMON, "--http-listen", "off", "--pool-bytes", "64MiB", "--workers", "2",
                           "--ready-fd", "3"}) {
    words.emplace_back(word);
  }
  words.push_back("--socket-dir=" + socket_dir().string());
  for (std::string& argument : arguments) words.push_back(std::move(argument));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  const std::string log = (directory_ / "log").string();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), kReadyFd);
  const int error = ::posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  PF_CHECK(error == 0, std::string("start ") + argv[0]);
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  PF_CHECK(static_cast<bool>(pidfd_), "pidfd_open of a child");
}

DaemonProcess::~DaemonProcess() {
  if (reaped_) return;
  Signal(SIGKILL);
  AwaitExit();
}

bool DaemonProcess::AwaitReady() {
  std::string text;
  while (text.find('\n') == std::string::npos) {
    pollfd wait{ready_.get(), POLLIN, 0};
    if (::poll(&wait, 1, kWaitMs) <= 0) return false;
    char byte = 0;
    if (::read(ready_.get(), &byte, 1) != 1) return false;  // it ended
    text += byte;
  }
  return text == "ready\n";
}

void DaemonProcess::Signal(int signal) const {
  ::kill(pid_, signal);
}

int DaemonProcess::AwaitExit() {
  pollfd wait{pidfd_.get(), POLLIN, 0};
  const bool ended = ::poll(&wait, 1, kWaitMs) == 1;
  if (!ended) Signal(SIGKILL);
  siginfo_t info{};
  PF_CHECK(::waitid(kPidfd, static_cast<id_t>(pidfd_.get()), &info, WEXITED) == 0, "waitid of a child");
  reaped_ = true;
  if (!ended) return -1;
  return info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
}

std::string DaemonProcess::Log() const {
  std::ifstream file(directory_ / "log");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace pinfeed
