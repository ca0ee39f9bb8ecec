// SPDX-License-Identifier: Apache-2.0
#include "tests/support/daemon_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace pinfeed {
namespace {

constexpr int kReadyFd = 3;
constexpr int kWaitMs = 30'000;
// Longer than the daemon waits for its clients by default, within a test's own limit.
constexpr int kExitWaitMs = 45'000;

// waitid's P_PIDFD is newer than some headers.
constexpr auto kPidfd = static_cast<idtype_t>(3);

// Starts a program that does not outlive a test program which is killed.
pid_t Spawn(std::vector<std::string> words, const posix_spawn_file_actions_t& actions) {
  words.insert(words.begin(), {"setpriv", "--pdeathsig", "KILL"});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  PF_CHECK(::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ) == 0, words[3]);
  return pid;
}

int ExitStatus(const siginfo_t& info) {
  return info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
}

}  // namespace

DaemonProcess::DaemonProcess(std::vector<std::string> arguments, std::vector<std::string> wrapper) {
  std::filesystem::create_directory(socket_dir());
  int pipe_ends[2];
  PF_CHECK(::pipe2(pipe_ends, O_CLOEXEC) == 0, "pipe2");
  ready_.reset(pipe_ends[0]);
  const UniqueFd write_end(pipe_ends[1]);

  std::vector<std::string> words = std::move(wrapper);
  for (const char* word : {PINFEED_DAEMON, "--http-listen", "off", "--pool-bytes", "64MiB", "--workers", "2",
                           "--ready-fd", "3"}) {
    words.emplace_back(word);
  }
  words.push_back("--socket-dir=" + socket_dir().string());
  words.push_back("--index-dir=" + (directory_ / "index").string());
  for (std::string& argument : arguments) words.push_back(std::move(argument));

  const std::string log = (directory_ / "log").string();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), kReadyFd);
  pid_ = Spawn(std::move(words), actions);
  posix_spawn_file_actions_destroy(&actions);
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  PF_CHECK(static_cast<bool>(pidfd_), "pidfd_open of a child");
}

std::unique_ptr<DaemonProcess> DaemonProcess::Serve(const std::filesystem::path& directory,
                                                    std::vector<std::string> arguments) {
  const std::string path = directory.string();
  arguments.insert(arguments.begin(),
                   {"--socket-dir=" + path, "--allowed-roots=" + path, "--pool-bytes=256MiB"});
  auto daemon = std::make_unique<DaemonProcess>(std::move(arguments));
  const bool ready = daemon->AwaitReady();
  PF_CHECK(ready, "pinfeedd did not become ready: " + daemon->Log());
  return daemon;
}

DaemonProcess::~DaemonProcess() {
  if (reaped_) return;
  const int exit_status = Stop();
  EXPECT_EQ(exit_status, 0) << "of the daemon, -1 when it had to be killed. Its log:\n" << Log();
}

int DaemonProcess::Stop() {
  Signal(SIGTERM);
  return AwaitExit();
}

void DaemonProcess::Kill() {
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
  const bool ended = ::poll(&wait, 1, kExitWaitMs) == 1;
  if (!ended) Signal(SIGKILL);
  siginfo_t info{};
  PF_CHECK(::waitid(kPidfd, static_cast<id_t>(pidfd_.get()), &info, WEXITED) == 0, "waitid of a child");
  reaped_ = true;
  if (!ended) return -1;
  return ExitStatus(info);
}

std::string DaemonProcess::Log() const {
  std::ifstream file(directory_ / "log");
  return {std::istreambuf_iterator<char>(file), {}};
}

ProgramResult RunProgram(const std::vector<std::string>& command, const std::string& address) {
  const ScopedEnv environment("PINFEED_ADDRESS", address.c_str());
  std::array<int, 2> ends{};
  PF_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2");
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_adddup2(&actions, writer.get(), fd);
  const pid_t pid = Spawn(command, actions);
  posix_spawn_file_actions_destroy(&actions);
  writer.reset();
  ProgramResult result;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t bytes = ::read(reader.get(), buffer.data(), buffer.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) break;
    result.output.append(buffer.data(), static_cast<size_t>(bytes));
  }
  siginfo_t info{};
  PF_CHECK(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED) == 0, "waitid of a child");
  result.exit_status = ExitStatus(info);
  return result;
}

std::filesystem::path WriteTokens(const TempDir& directory, size_t count) {
  std::string bytes(count * 2, '\0');
  for (size_t i = 0; i < count; ++i) {
    const auto token = static_cast<uint16_t>(i);
    std::memcpy(&bytes[2 * i], &token, 2);
  }
  return directory.Write("tokens.bin", bytes);
}

}  // namespace pinfeed
