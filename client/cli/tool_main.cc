// SPDX-License-Identifier: Apache-2.0
#include "client/cli/tool_main.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <span>
#include <string_view>

#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/text.h"
#include "pinfeed/pinfeed.hpp"

namespace pinfeed {
namespace {

// A command fails if its output was not written, for example to a full disk.
void FlushAnswer() {
  errno = 0;
  const bool had_failed = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !had_failed && std::cout.flush()) return;
  const int error = errno;
  throw ToolError(std::string("write the answer to stdout: ") +
                  (error != 0 ? std::strerror(error) : "it was cut short"));
}

int Run(int argc, char** argv) {
  // As the Python package does, before CUDA is initialised: see docs/transforms.md, "Decoding on the GPU".
  (void)::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  ToolContext context;
  CLI::App tool("Looks at pinfeedd, the daemon that feeds training batches, measures and steers it.",
                "pinfeed");
  tool.require_subcommand(1);
  tool.fallthrough();
  tool.set_version_flag("--version", std::to_string(pf_version() >> 16) + "." +
                                         std::to_string(pf_version() >> 8 & 0xff) + "." +
                                         std::to_string(pf_version() & 0xff));
  tool.add_option(
      "--address", context.address,
      "the daemon's socket (default: $PINFEED_ADDRESS, else /run/pinfeed/pinfeed.sock, else, for "
      "commands that only look, that of your own private daemon), or HOST:PORT of its admin endpoint, "
      "by TLS");
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_name;
  const auto add_file = [&](const char* option, std::string& path, const char* what) {
    tool.add_option(option, path, what)->type_name("FILE");
  };
  add_file("--tls-ca", tls_ca,
           "for HOST:PORT: the CA of the daemon's certificate (default: $PINFEED_TLS_CA)");
  add_file("--tls-cert", tls_cert, "this caller's certificate (default: $PINFEED_TLS_CERT)");
  add_file("--tls-key", tls_key, "its key (default: $PINFEED_TLS_KEY)");
  tool.add_option("--tls-name", tls_name,
                  "the name in the daemon's certificate (default: $PINFEED_TLS_NAME, else HOST)")
      ->type_name("NAME");
  // Runs after the options are parsed and before the command.
  tool.parse_complete_callback([&] { SetTls(tls_ca, tls_cert, tls_key, tls_name); });
  AddStatusCommand(tool, context);
  AddTopCommand(tool, context);
  AddDatasetsCommand(tool, context);
  AddPeekCommand(tool, context);
  AddBenchCommand(tool, context);
  AddTraceCommand(tool, context);
  AddDoctorCommand(tool, context);
  AddOperatorCommands(tool, context);
  tool.footer(
      "Exit status: 0 done; 1 it failed, or `status` found no daemon that is ready; 2 wrong usage; 130 "
      "interrupted.");
  // CLI11 would take the next argument for the value.
  for (const std::string_view argument : std::span(argv, static_cast<size_t>(argc)).subspan(1))
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1)
      throw UsageError(Printable(argument) + " has no value");
  try {
    tool.parse(argc, argv);  // also runs the command
  } catch (const CLI::ParseError& error) {
    if (tool.get_subcommands().empty() && !tool.remaining().empty()) {
      std::fprintf(stderr, "pinfeed: there is no command %s; pinfeed --help lists them\n",
                   Printable(tool.remaining().front()).c_str());
      return kExitUsage;
    }
    if (tool.get_subcommands().empty() &&
        error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError)) {
      std::fputs(tool.help().c_str(), stderr);  // no command was given
      return kExitUsage;
    }
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError))  // its text reverses them
      throw UsageError("not expected: " + Printable(CLI::detail::join(tool.remaining(true), " ")));
    const int status = tool.exit(error);
    FlushAnswer();
    return status == 0 ? 0 : kExitUsage;  // 0: --help or --version
  }
  FlushAnswer();
  return context.exit_status;
}

}  // namespace

int ToolMain(int argc, char** argv) {
  CatchInterrupts();
  try {
    return Run(argc, argv);
  } catch (const Interrupted&) {
    std::fprintf(stderr, "pinfeed: interrupted\n");
    return kExitInterrupted;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "pinfeed: %s (see pinfeed --help)\n", error.what());
    return kExitUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pinfeed: %s\n", error.what());
    return kExitFailed;
  }
}

}  // namespace pinfeed
