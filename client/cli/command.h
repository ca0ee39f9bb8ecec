// SPDX-License-Identifier: Apache-2.0
// What main() and the commands agree on: each command adds its options to the tool and leaves its exit status
// in the result.
#pragma once

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/cli/private_daemons.h"

namespace pinfeed {

// Exit statuses beside 0; the message on stderr says why. `pinfeed --help` lists them.
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;          // the command line asks for nothing that could be done
inline constexpr int kExitInterrupted = 130;  // as a shell says it of SIGINT

// Purpose: what all commands share. Lives as long as main().
struct ToolContext {
  std::string address;  // empty: as the library finds it
  int exit_status = 0;
};

// A failure of the tool's own (the library's are pinfeed::Error).
class ToolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// The options do not say what to do.
class UsageError : public ToolError {
 public:
  using ToolError::ToolError;
};

// A number from `least` to `most`. CLI::Range lets "nan" pass, which compares false with everything.
CLI::Validator Within(double least, double most);

// For commands that only look. Where no daemon was named and none serves this user at the default address,
// this user's private daemon is what to look at: `context.address` becomes its socket, which stderr tells.
// Throws ToolError, which lists them, when there are several. Returns those that run beside the one that is
// looked at.
std::vector<PrivateDaemon> ChooseDaemon(ToolContext& context);

void AddStatusCommand(CLI::App& tool, ToolContext& context);
void AddDatasetsCommand(CLI::App& tool, ToolContext& context);
void AddPeekCommand(CLI::App& tool, ToolContext& context);
void AddBenchCommand(CLI::App& tool, ToolContext& context);
void AddTopCommand(CLI::App& tool, ToolContext& context);
void AddTraceCommand(CLI::App& tool, ToolContext& context);
void AddDoctorCommand(CLI::App& tool, ToolContext& context);
// drain, evict, reload, logs
void AddOperatorCommands(CLI::App& tool, ToolContext& context);

}  // namespace pinfeed
