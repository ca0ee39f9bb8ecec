// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/daemon_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <utility>

#include "common/unique_handle.h"

namespace pinfeed {
namespace {

std::vector<char*> Argv(std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return argv;
}

// The child's side of a fork: becomes the program, and dies with the test. Only calls that are allowed after
// a fork with threads.
[[noreturn]] void Become(char* const* argv, int output) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (output >= 0) {
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
  }
  ::execv(argv[0], argv);
  ::_exit(127);
}

int WaitFor(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) PF_CHECK(errno == EINTR, "waitpid");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Where the daemon reports, see sd_notify(3).
UniqueFd NotifySocket(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  PF_CHECK(path.size() < sizeof(address.sun_path), path);
  std::memcpy(address.sun_path, path.data(), path.size());
  std::filesystem::remove(path);
  PF_CHECK(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0, path);
  return fd;
}

bool SaysReady(int fd, pid_t pid) {
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    if (::poll(&entry, 1, 100) > 0) {
      std::array<char, 4096> text{};
      const ssize_t bytes = ::recv(fd, text.data(), text.size() - 1, 0);
      if (bytes > 0 && std::strstr(text.data(), "READY=1") != nullptr) return true;
    } else if (::kill(pid, 0) != 0 || ::waitpid(pid, nullptr, WNOHANG) == pid) {
      return false;
    }
  }
}

}  // namespace

DaemonProcess::DaemonProcess(std::filesystem::path directory, std::vector<std::string> arguments)
    : directory_(std::move(directory)) {
  const std::string notify = (directory_ / "notify.sock").string();
  const UniqueFd socket = NotifySocket(notify);
  std::vector<std::string> words{PINFEED_TEST_DAEMON,
                                 "--socket-dir",
                                 directory_.string(),
                                 "--allowed-roots",
                                 directory_.string(),
                                 "--http-listen",
                                 "off",
                                 "--workers",
                                 "2",
                                 "--pool-bytes",
                                 "256MiB",
                                 "--log-level",
                                 "warning"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::vector<char*> argv = Argv(words);
  const ScopedEnv environment("NOTIFY_SOCKET", notify.c_str());
  pid_ = ::fork();
  PF_CHECK(pid_ >= 0, "fork");
  if (pid_ == 0) Become(argv.data(), -1);
  PF_CHECK(SaysReady(socket.get(), pid_), "pinfeedd did not become ready");
}

DaemonProcess::~DaemonProcess() {
  if (pid_ > 0) Stop();
}

void DaemonProcess::BeginStop() {
  PF_CHECK(::kill(pid_, SIGTERM) == 0, "kill");
}

void DaemonProcess::Join() {
  PF_CHECK(WaitFor(std::exchange(pid_, -1)) == 0, "pinfeedd did not end well");
}

void DaemonProcess::Stop() {
  BeginStop();
  Join();
}

void DaemonProcess::Kill() {
  PF_CHECK(::kill(pid_, SIGKILL) == 0, "kill");
  WaitFor(std::exchange(pid_, -1));
}

ProgramResult RunProgram(const std::vector<std::string>& command, const std::string& address) {
  std::vector<std::string> words = command;
  const std::vector<char*> argv = Argv(words);
  const ScopedEnv environment("PINFEED_ADDRESS", address.c_str());
  std::array<int, 2> ends{};
  PF_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe");
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t pid = ::fork();
  PF_CHECK(pid >= 0, "fork");
  if (pid == 0) Become(argv.data(), writer.get());
  writer.reset();
  ProgramResult result;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t bytes = ::read(reader.get(), buffer.data(), buffer.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) break;
    result.output.append(buffer.data(), static_cast<size_t>(bytes));
  }
  result.exit_status = WaitFor(pid);
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
