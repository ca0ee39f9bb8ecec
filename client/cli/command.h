// SPDX-License-Identifier: Apache-2.0
// Shared by main() and the commands. Each command adds its options to the tool and stores its exit status in
// the result.
#pragma once

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/cli/private_daemons.h"

namespace pinfeed {

// Exit statuses other than 0. The message on stderr says why. `pinfeed --help` lists them.
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;          // the command line is wrong
inline constexpr int kExitInterrupted = 130;  // as shells report SIGINT

// Purpose: the state that all commands share. Lives as long as main().
struct ToolContext {
  std::string address;  // empty: the library's default
  int exit_status = 0;
};

// A failure of the tool itself (the library throws pinfeed::Error).
class ToolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// The command line is wrong.
class UsageError : public ToolError {
 public:
  using ToolError::ToolError;
};

// A CLI check for a number from `min` to `max`. CLI::Range accepts "nan", because every comparison with it is
// false.
CLI::Validator Within(double min, double max);

// What a command prints behind this goes to stderr if stdout is the file `output`, which it has written.
void PrintBeside(const std::string& output);

// Whether PINFEED_ADDRESS is set.
bool EnvironmentNamesDaemon();
// Chooses a daemon for commands that only read. If no daemon was named and none serves this user at the
// default address, sets `context.address` to the socket of the user's private daemon and says so on stderr.
// Throws ToolError, listing them, if there are several. Returns the private daemons other than the chosen
// one.
std::vector<PrivateDaemon> ChooseDaemon(ToolContext& context);

void AddStatusCommand(CLI::App& tool, ToolContext& context);
void AddDatasetsCommand(CLI::App& tool, ToolContext& context);
void AddPeekCommand(CLI::App& tool, ToolContext& context);
void AddBenchCommand(CLI::App& tool, ToolContext& context);
void AddTopCommand(CLI::App& tool, ToolContext& context);
void AddTraceCommand(CLI::App& tool, ToolContext& context);
void AddDoctorCommand(CLI::App& tool, ToolContext& context);
// Adds drain, evict, reload, logs and cache.
void AddOperatorCommands(CLI::App& tool, ToolContext& context);

}  // namespace pinfeed
