// SPDX-License-Identifier: Apache-2.0
// What main() and the commands agree on: each command adds its options to the tool and leaves its exit status
// in the result.
#pragma once

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <string>

namespace pinfeed {

// Exit statuses beside 0. Wrong usage has CLI11's own, above 100.
inline constexpr int kExitNotReady = 1;  // `status`: the daemon answers, but does not take feeds
inline constexpr int kExitFailed = 2;    // the message on stderr says why
inline constexpr int kExitInterrupted = 130;

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

void AddStatusCommand(CLI::App& tool, ToolContext& context);
void AddDatasetsCommand(CLI::App& tool, ToolContext& context);
void AddPeekCommand(CLI::App& tool, ToolContext& context);
void AddBenchCommand(CLI::App& tool, ToolContext& context);

}  // namespace pinfeed
