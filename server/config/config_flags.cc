// SPDX-License-Identifier: Apache-2.0
#include "server/config/config_flags.h"

#include <CLI/CLI.hpp>

#include "server/config/config_keys.h"
#include "server/config/version.h"

namespace pinfeed {

Result<Flags> ParseFlags(const std::vector<std::string>& arguments) {
  CLI::App app(
      "pinfeedd loads training batches once per host and hands them to trainer processes.\n"
      "Each option below can also be set in the file (KEY = VALUE) and by the environment (PINFEED_KEY); a "
      "flag overrides the\n"
      "environment, which overrides the file.",
      "pinfeedd");
  app.set_version_flag("--version", std::string("pinfeedd ") + kVersion);
  Flags flags;
  CommandLine& given = flags.command_line;
  bool check = false;
  bool print = false;
  app.add_option("--config", given.config_file, "TOML file to read (else $PINFEED_CONFIG)")
      ->type_name("FILE");
  app.add_flag("--check", check,
               "check the configuration, print OK and the file that was read, or every fault, and exit");
  app.add_flag("--print-config", print,
               "print the effective configuration with the origin of each value, and exit");
  app.add_flag("--private", given.private_mode,
               "serve one process: no HTTP, every path allowed unless configured otherwise");
  app.add_option("--lifetime-fd", given.lifetime_fd, "stop when this descriptor, a pipe's read end, hangs up")
      ->check(CLI::Range(0, 1 << 20))
      ->type_name("FD");
  app.add_option("--ready-fd", given.ready_fd,
                 "write the line 'ready' to this descriptor once clients can connect")
      ->check(CLI::Range(0, 1 << 20))
      ->type_name("FD");
  std::map<std::string, std::string> values;
  for (const ConfigKey& key : ConfigKeys()) {
    app.add_option(FlagName(key.name), values[std::string(key.name)], std::string(key.help))
        ->type_name(std::string(key.placeholder))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  for (const std::string& argument : arguments)  // CLI11 would take the next argument for the value
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1)
      return InvalidArgument("command line: " + argument + " has no value (see pinfeedd --help)");
  try {
    // CLI11 expects a vector in reverse order.
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    given.action = Action::kPrintAndExit;
    given.text = app.help();
    return flags;
  } catch (const CLI::CallForVersion&) {
    given.action = Action::kPrintAndExit;
    given.text = std::string("pinfeedd ") + kVersion + "\n";
    return flags;
  } catch (const CLI::ExtrasError&) {  // its text has the words in reverse order
    return InvalidArgument("command line: not expected: " + CLI::detail::join(app.remaining(), " ") +
                           " (see pinfeedd --help)");
  } catch (const CLI::ParseError& error) {
    return InvalidArgument(std::string("command line: ") + error.what() + " (see pinfeedd --help)");
  }
  for (const ConfigKey& key : ConfigKeys()) {
    if (app.count(FlagName(key.name)) != 0)
      flags.values[std::string(key.name)] = values[std::string(key.name)];
  }
  if (check) given.action = Action::kCheck;
  if (print) given.action = Action::kPrintConfig;
  return flags;
}

}  // namespace pinfeed
