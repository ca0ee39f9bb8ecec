// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/daemon_main.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/base/log.h"
#include "common/os/freed_memory.h"
#include "server/config/config.h"
#include "server/daemon/daemon.h"
#include "server/daemon/daemon_events.h"
#include "server/daemon/host_check.h"
#include "server/daemon/service_notify.h"

namespace pinfeed {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitConfig = 2;

std::map<std::string, std::string> Environment() {
  std::map<std::string, std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (const size_t equals = text.find('='); equals != std::string_view::npos)
      out.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return out;
}

// A SIGHUP waits from here on until the daemon is there, whose reload it asks for: by default it would end
// the process. SIGTERM goes on to end what has not come so far that it would have to be told.
void DeferReload() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

// What is opened later must not become stdin, stdout or stderr, into which log lines would be written.
void OpenStandardStreams() {
  int fd = ::open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd >= 0) ::close(fd);
}

// What is asked for must not be cut off without a word.
int PrintAndExit(std::string_view text) {
  if (std::cout << text << std::flush) return 0;
  std::cerr << "pinfeedd: write to stdout: " << std::strerror(errno) << '\n';
  return kExitFailed;
}

// No daemon comes of this configuration: the service manager and the clients that wait are told.
int RefuseConfig(const Status& status, bool private_mode) {
  std::cerr << "pinfeedd: " << status.message() << std::endl;
  ServiceNotify service;
  if (service.Open(!private_mode).ok()) {
    service.ShowStatus("cannot start: " + status.message());
    service.RefuseClients();
  }
  return kExitConfig;
}

int Run(const std::vector<std::string>& arguments) {
  const auto read_config = [arguments] { return ParseCommandLine(arguments, Environment()); };
  const Result<CommandLine> command_line = read_config();
  if (!command_line.ok()) {
    const bool is_private = std::find(arguments.begin(), arguments.end(), "--private") != arguments.end();
    return RefuseConfig(command_line.status(), is_private);
  }
  switch (command_line->action) {
    case Action::kPrintAndExit:
      return PrintAndExit(command_line->text);
    case Action::kPrintConfig:
      return PrintAndExit(PrintConfig(*command_line));
    case Action::kCheck:
    case Action::kRun:
      break;
  }
  if (const Status status = InitLogging(command_line->config.log_level, command_line->config.log_format);
      !status.ok()) {
    std::cerr << "pinfeedd: " << status.message() << '\n';
    return kExitConfig;
  }
  if (command_line->action == Action::kCheck) {
    if (!spdlog::should_log(spdlog::level::info)) (void)SetLogLevel("info");  // it tells what it waits for
    if (const Status status = CheckHost(*command_line); !status.ok()) {
      std::cerr << "pinfeedd: " << status.message() << '\n';
      return kExitConfig;
    }
    return PrintAndExit(DescribeCheck(*command_line) + '\n');
  }
  ReturnLargeObjects();
  BlockDaemonSignals();
  Result<std::unique_ptr<Daemon>> daemon = Daemon::Start(*command_line, read_config);
  if (!daemon.ok()) {
    spdlog::error("cannot start: {}", daemon.status().ToString());
    return daemon.status().code() == Code::kInvalidArgument ? kExitConfig : kExitFailed;
  }
  const int code = (*daemon)->Run().ok() ? 0 : kExitFailed;
  if ((*daemon)->hangs()) std::_Exit(code);  // else what is destroyed at exit is used on
  return code;
}

}  // namespace

int DaemonMain(int argc, char** argv) {
  OpenStandardStreams();
  DeferReload();
  try {
    return Run({argv + 1, argv + argc});
  } catch (const std::system_error& error) {
    std::cerr << "pinfeedd: the system refuses a thread or a lock: " << error.what()
              << "; raise the limit of processes (ulimit -u, or the container's) or of address space (ulimit "
                 "-v), or lower workers\n";
    return kExitFailed;
  } catch (const std::exception& error) {
    std::cerr << "pinfeedd: " << error.what() << '\n';
    return kExitFailed;
  }
}

}  // namespace pinfeed
