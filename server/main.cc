// SPDX-License-Identifier: Apache-2.0
// pinfeedd: parse, check, start, run. Exit codes: 0 ended as asked, 1 could not start, 2 bad configuration.
#include <unistd.h>

#include <exception>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/log.h"
#include "server/config.h"
#include "server/daemon.h"
#include "server/host_check.h"

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

int Run(const std::vector<std::string>& arguments) {
  const pinfeed::Result<pinfeed::CommandLine> command_line =
      pinfeed::ParseCommandLine(arguments, Environment());
  if (!command_line.ok()) {
    std::cerr << "pinfeedd: " << command_line.status().message() << '\n';
    return kExitConfig;
  }
  switch (command_line->action) {
    case pinfeed::Action::kPrintAndExit:
      std::cout << command_line->text;
      return 0;
    case pinfeed::Action::kPrintConfig:
      std::cout << pinfeed::PrintConfig(*command_line);
      return 0;
    case pinfeed::Action::kCheck:
      if (const pinfeed::Status status = pinfeed::CheckHost(*command_line); !status.ok()) {
        std::cerr << "pinfeedd: " << status.message() << '\n';
        return kExitConfig;
      }
      std::cout << "OK\n";
      return 0;
    case pinfeed::Action::kRun:
      break;
  }
  pinfeed::BlockDaemonSignals();
  if (const pinfeed::Status status =
          pinfeed::InitLogging(command_line->config.log_level, command_line->config.log_format);
      !status.ok()) {
    std::cerr << "pinfeedd: " << status.message() << '\n';
    return kExitConfig;
  }
  pinfeed::Result<std::unique_ptr<pinfeed::Daemon>> daemon = pinfeed::Daemon::Start(*command_line);
  if (!daemon.ok()) {
    spdlog::error("cannot start: {}", daemon.status().ToString());
    return kExitFailed;
  }
  return (*daemon)->Run().ok() ? 0 : kExitFailed;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "pinfeedd: " << error.what() << '\n';
    return kExitFailed;
  }
}
